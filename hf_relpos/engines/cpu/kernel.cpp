// Attention with relative terms, forward and backward, on the CPU.
//
// Plain C++17: no torch headers, no BLAS and no OpenMP to build with. Pointers and strides come in, and so do the
// matrix product and the way to run on several threads: functions of the libraries that PyTorch has loaded, so that
// there is one pool of threads and one library of matrix products in the process. See library.py.
//
// With d = j - p, where p is the position of query i, the score of key j is
//
//     scale * (q_i . k_j  +  g_i * (q_i . query[d] + k_j . key[d]))  +  g_i * bias[d]  +  native_bias[d]
//
// and the output gains g_i * sum_j w_ij value[d]. A table is constant beyond its horizon. So a row of scores has three
// parts: left of the band every key gets the same number, so does every key right of it, and in between row i meets
// its numbers over offsets at contiguous columns: one vector addition, no index. The sums of weights, and of gradients
// of scores, per offset come out the same way (`mass`), and the products with the tables are small and in the cache.
//
// Results do not depend on the number of threads: work is cut by the shape of the problem alone, each piece of a result
// is written by one task, and sums over tasks are taken in a fixed order at the end.
//
// A block of scores is queries x keys, row by row. Rows of other tables follow; all matrices here are row-major.

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>

#if defined(_MSC_VER)
#define EXPORT extern "C" __declspec(dllexport)
#define INLINE __forceinline
#define RESTRICT __restrict
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#define INLINE inline __attribute__((always_inline))
#define RESTRICT __restrict__
#endif

// Instruction sets are chosen when the library is loaded: a function with this mark exists once for each. What it
// calls must be INLINE, since a clone calls the plain version of everything else. Sanitizers run before the choice.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && defined(__x86_64__) && defined(__linux__) && \
    !defined(__SANITIZE_ADDRESS__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

namespace {

using i64 = std::int64_t;

// ---------------------------------------------------------------------------------------------------------------------
// What the caller hands over. library.py has the same records; every field has eight bytes.
// ---------------------------------------------------------------------------------------------------------------------

enum Status : int { DONE = 0, OUT_OF_MEMORY = 1, UNKNOWN_DTYPE = 2 };
enum Dtype : i64 { FLOAT32 = 0, FLOAT64 = 1, BFLOAT16 = 2, FLOAT16 = 3 };

// A tensor [batch, heads, rows, columns] of the call's dtype. Strides count elements; any will do, zero included.
struct Strided {
    void* data;
    i64 batch, head, row, column;
};

// A table over the offsets -horizon .. horizon, [heads or 1, 2 * horizon + 1, columns], contiguous, of the dtype sums
// are made in. `data` is null where there is no such table, `gradient` (same shape) where none is wanted.
struct Table {
    const void* data;
    void* gradient;
    i64 horizon;
    i64 heads;
};

struct Call {
    i64 dtype;
    i64 batch, heads, key_heads, queries, keys, head_dim, value_dim;
    i64 query_offset;  // position of the first query; key j stands at position j
    i64 causal;        // whether keys after a query are hidden from it
    i64 window;        // keys farther away than this are hidden; negative: none are
    double scale;
    double dropout;  // probability with which a weight is dropped
    i64 seed;
    const std::uint8_t* tokens;  // [batch, keys], zero: padding; null where every key is a token

    Strided query, key, value, output;
    Strided output_gradient, query_gradient, key_gradient, value_gradient;  // the last three: null if not wanted
    void* log_sums;  // [batch, heads, queries]: log of the sum of exponentials; written forward, read backward

    Table bias, native_bias, query_table, key_table, value_table;
    const void* gate;  // [gate_batch, heads, queries], or null
    void* gate_gradient;
    i64 gate_batch;  // the batch, or 1

    i64 threads;
    // void GOMP_parallel(function, data, threads, flags); null: one thread
    void (*run_parallel)(void (*)(void*), void*, unsigned, unsigned);
    int (*set_product_threads)(int);  // of the calling thread, returns what it was; null where there is none
    void* sgemm;                      // Fortran's; null: our own
    void* dgemm;
};

// ---------------------------------------------------------------------------------------------------------------------
// Numbers: half types and bits
// ---------------------------------------------------------------------------------------------------------------------

struct BFloat16 {
    std::uint16_t bits;
};
struct Float16 {
    std::uint16_t bits;
};

template <class To, class From>
INLINE To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "the bits of one are the bits of the other");
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

INLINE float widened(float x) { return x; }
INLINE double widened(double x) { return x; }
INLINE float widened(BFloat16 x) { return same_bits<float>(static_cast<std::uint32_t>(x.bits) << 16); }
INLINE float widened(Float16 x) {
    // The exponent is moved to where float32 has it, then corrected by a product, which also mends subnormal numbers.
    const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
    const float shifted = same_bits<float>(rest << 13) * same_bits<float>(std::uint32_t{(127 + 127 - 15) << 23});
    const std::uint32_t bits = same_bits<std::uint32_t>(shifted);
    const std::uint32_t not_finite = 0x7f800000 | (rest << 13);
    return same_bits<float>(sign | (rest >= 0x7c00 ? not_finite : bits));
}

// Rounded to nearest, halves to even.
INLINE void narrow(float x, float& to) { to = x; }
INLINE void narrow(double x, double& to) { to = x; }
INLINE void narrow(float x, BFloat16& to) {
    const std::uint32_t bits = same_bits<std::uint32_t>(x);
    const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    to.bits = static_cast<std::uint16_t>(x != x ? 0x7fc0 : rounded);
}
INLINE void narrow(float x, Float16& to) {
    const std::uint32_t bits = same_bits<std::uint32_t>(x), sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
    // Below 2^-14 a product would do, but adding 0.5 rounds at the right place and leaves the number in the low bits.
    const std::uint32_t half = same_bits<std::uint32_t>(0.5f);
    const std::uint32_t small = same_bits<std::uint32_t>(same_bits<float>(size) + 0.5f) - half;
    const std::uint32_t normal = (size - ((127u - 15u) << 23) + 0xfff + ((size >> 13) & 1)) >> 13;
    const std::uint32_t finite = size < ((127u - 14u) << 23) ? small : normal;
    const std::uint32_t large = x != x ? 0x7e00 : 0x7c00;
    to.bits = static_cast<std::uint16_t>(sign | (size >= ((127u + 16u) << 23) ? large : finite));
}

INLINE bool is_finite(float x) { return (same_bits<std::uint32_t>(x) & 0x7f800000) != 0x7f800000; }
INLINE bool is_finite(double x) {
    return (same_bits<std::uint64_t>(x) & 0x7ff0000000000000) != 0x7ff0000000000000;
}
INLINE bool is_finite(BFloat16 x) { return (x.bits & 0x7f80) != 0x7f80; }
INLINE bool is_finite(Float16 x) { return (x.bits & 0x7c00) != 0x7c00; }

template <class T>
constexpr T infinity() {
    return std::numeric_limits<T>::infinity();
}

// exp(x) for x <= 0 (or a rounding error above). Below the smallest normal number it is zero; NaN stays NaN.
//
// 2^n exp(r) with |r| <= ln(2) / 2: adding a number whose last place is 1 rounds x / ln(2) to the integer n and leaves
// n in the low bits, which become the exponent of 2^n. exp(r) is a polynomial fitted for the smallest relative error
// (1.1e-7, float32), or the Taylor series (float64).
INLINE float exponential(float x) {
    const float rounder = 12582912.0f;  // 1.5 * 2^23
    const float shifted = x * 1.44269504f + rounder, n = shifted - rounder;
    // One number for ln(2): its error grows with n, where the result is too small to matter.
    const float r = x - n * 0.693147181f;
    float p = 0.00831204944f;
    p = p * r + 0.0418944994f;
    p = p * r + 0.166671332f;
    p = p * r + 0.499992018f;
    p = p * (r * r) + r + 1.0f;
    const float power = same_bits<float>((same_bits<std::uint32_t>(shifted) << 23) + 0x3f800000);
    return x < -87.0f ? 0.0f : p * power;
}
INLINE double exponential(double x) {
    const double rounder = 6755399441055744.0;  // 1.5 * 2^52
    const double shifted = x * 1.4426950408889634 + rounder, n = shifted - rounder;
    const double r = (x - n * 0.693145751953125) - n * 1.42860682030941723212e-6;
    double p = 1.0 / 6227020800;
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * (r * r) + r + 1.0;
    const double power = same_bits<double>((same_bits<std::uint64_t>(shifted) << 52) + 0x3ff0000000000000);
    return x < -708.0 ? 0.0 : p * power;
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory: one allocation for a call, handed out in pieces
// ---------------------------------------------------------------------------------------------------------------------

// Hands out pieces of memory. Without memory it only counts: laying out the same pieces twice gives size, then places.
class Pieces {
  public:
    explicit Pieces(char* memory = nullptr) : memory_(memory) {}

    template <class T>
    T* take(i64 count) {
        char* piece = memory_ ? memory_ + used_ : nullptr;
        used_ += (count * static_cast<i64>(sizeof(T)) + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
        return reinterpret_cast<T*>(piece);
    }
    i64 used() const { return used_; }

    // Matrix products round differently at different alignments: every piece starts at the same one.
    static constexpr i64 ALIGNMENT = 64;

  private:
    char* memory_;
    i64 used_ = 0;
};

class Memory {
  public:
    explicit Memory(i64 size)
        : raw_(static_cast<char*>(std::malloc(static_cast<std::size_t>(size + Pieces::ALIGNMENT)))) {}
    ~Memory() { std::free(raw_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    bool failed() const { return raw_ == nullptr; }
    char* data() const {
        const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(raw_);
        return raw_ + (Pieces::ALIGNMENT - start % Pieces::ALIGNMENT);
    }

  private:
    char* raw_;
};

// ---------------------------------------------------------------------------------------------------------------------
// Threads: tasks are taken from a counter; none of them knows how many threads there are
// ---------------------------------------------------------------------------------------------------------------------

template <class Body>
struct Team {
    Body* body;
    i64 tasks;
    int (*set_product_threads)(int);
    std::atomic<i64> next_task{0};
    std::atomic<i64> next_worker{0};

    static void work(void* data) {
        Team& team = *static_cast<Team*>(data);
        const i64 worker = team.next_worker++;
        const int before = team.set_product_threads ? team.set_product_threads(1) : 0;
        for (i64 task = team.next_task++; task < team.tasks; task = team.next_task++) (*team.body)(worker, task);
        if (team.set_product_threads) team.set_product_threads(before);
    }
};

i64 workers(const Call& call) { return call.run_parallel ? std::max<i64>(1, call.threads) : 1; }

// body(worker, task) for each task; a worker, numbered from zero, does one thing at a time.
template <class Body>
void run(const Call& call, i64 tasks, Body body) {
    if (tasks == 0) return;
    Team<Body> team{&body, tasks, call.set_product_threads};
    const i64 threads = workers(call);
    if (threads == 1 || tasks == 1) {
        Team<Body>::work(&team);
    } else {
        call.run_parallel(Team<Body>::work, &team, static_cast<unsigned>(threads), 0);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Vectors
// ---------------------------------------------------------------------------------------------------------------------

template <class T>
INLINE void fill(T* to, i64 count, T number) {
#pragma omp simd
    for (i64 j = 0; j < count; ++j) to[j] = number;
}

template <class T>
INLINE void copy(T* RESTRICT to, const T* RESTRICT numbers, i64 count) {
#pragma omp simd
    for (i64 j = 0; j < count; ++j) to[j] = numbers[j];
}

template <class T>
INLINE T sum(const T* RESTRICT numbers, i64 count) {
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (i64 j = 0; j < count; ++j) total += numbers[j];
    return total;
}

template <class T>
INLINE T dot(const T* RESTRICT a, const T* RESTRICT b, i64 count) {
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (i64 j = 0; j < count; ++j) total += a[j] * b[j];
    return total;
}

template <class T>
INLINE void add(T* RESTRICT to, const T* RESTRICT numbers, i64 count) {
#pragma omp simd
    for (i64 j = 0; j < count; ++j) to[j] += numbers[j];
}

template <class T>
INLINE void add_scaled(T* RESTRICT to, const T* RESTRICT numbers, i64 count, T factor) {
#pragma omp simd
    for (i64 j = 0; j < count; ++j) to[j] += factor * numbers[j];
}

template <class T>
INLINE void scale_by(T* numbers, i64 count, T factor) {
#pragma omp simd
    for (i64 j = 0; j < count; ++j) numbers[j] *= factor;
}

template <class T>
INLINE void multiply_by(T* RESTRICT numbers, const T* RESTRICT factors, i64 count) {
#pragma omp simd
    for (i64 j = 0; j < count; ++j) numbers[j] *= factors[j];
}

// Dot products of a vector with four others, and the sum of four vectors, each times a factor.
template <class T>
INLINE void dot_four(const T* RESTRICT a, const T* RESTRICT b0, const T* RESTRICT b1, const T* RESTRICT b2,
                     const T* RESTRICT b3, i64 count, T* to) {
    T s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (i64 j = 0; j < count; ++j) {
        s0 += a[j] * b0[j];
        s1 += a[j] * b1[j];
        s2 += a[j] * b2[j];
        s3 += a[j] * b3[j];
    }
    to[0] = s0, to[1] = s1, to[2] = s2, to[3] = s3;
}

template <class T>
INLINE void add_four_scaled(T* RESTRICT to, const T* RESTRICT b0, const T* RESTRICT b1, const T* RESTRICT b2,
                            const T* RESTRICT b3, i64 count, const T* factors) {
    const T f0 = factors[0], f1 = factors[1], f2 = factors[2], f3 = factors[3];
#pragma omp simd
    for (i64 j = 0; j < count; ++j) to[j] += f0 * b0[j] + f1 * b1[j] + f2 * b2[j] + f3 * b3[j];
}

// ---------------------------------------------------------------------------------------------------------------------
// Matrix products
// ---------------------------------------------------------------------------------------------------------------------

enum Form : char { AS_IS = 'n', TRANSPOSED = 't' };

template <class T>
struct Matrix {
    T* data;
    i64 stride;  // from row to row
    Form form = AS_IS;
};

// The part of our own product that does the work: a tile of ROWS x COLUMNS sums stays in registers.
template <class T>
struct Tile {
    static constexpr i64 ROWS = 4, COLUMNS = 64 / static_cast<i64>(sizeof(T)), DEPTH = 256;
};

template <class T>
INLINE void own_product(i64 m, i64 n, i64 k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta, Matrix<T> c) {
    constexpr i64 ROWS = Tile<T>::ROWS, COLUMNS = Tile<T>::COLUMNS, DEPTH = Tile<T>::DEPTH;
    T packed_a[DEPTH * ROWS], packed_b[DEPTH * COLUMNS];
    const i64 a_row = a.form == AS_IS ? a.stride : 1, a_depth = a.form == AS_IS ? 1 : a.stride;
    const i64 b_depth = b.form == AS_IS ? b.stride : 1, b_column = b.form == AS_IS ? 1 : b.stride;
    for (i64 depth = 0; depth < k; depth += DEPTH) {
        const i64 deep = std::min(DEPTH, k - depth);
        const T keep = depth == 0 ? beta : T(1);
        for (i64 column = 0; column < n; column += COLUMNS) {
            const i64 wide = std::min(COLUMNS, n - column);
            for (i64 l = 0; l < deep; ++l)
                for (i64 j = 0; j < COLUMNS; ++j)
                    packed_b[l * COLUMNS + j] =
                        j < wide ? b.data[(depth + l) * b_depth + (column + j) * b_column] : T(0);
            for (i64 row = 0; row < m; row += ROWS) {
                const i64 high = std::min(ROWS, m - row);
                for (i64 l = 0; l < deep; ++l)
                    for (i64 i = 0; i < ROWS; ++i)
                        packed_a[l * ROWS + i] = i < high ? a.data[(row + i) * a_row + (depth + l) * a_depth] : T(0);
                T sums[ROWS][COLUMNS] = {};
                for (i64 l = 0; l < deep; ++l)
                    for (i64 i = 0; i < ROWS; ++i) {
                        const T factor = packed_a[l * ROWS + i];
#pragma omp simd
                        for (i64 j = 0; j < COLUMNS; ++j) sums[i][j] += factor * packed_b[l * COLUMNS + j];
                    }
                for (i64 i = 0; i < high; ++i) {
                    T* to = c.data + (row + i) * c.stride + column;
                    // What is there already may be anything where it is not asked for.
                    for (i64 j = 0; j < wide; ++j) to[j] = alpha * sums[i][j] + (keep == T(0) ? T(0) : keep * to[j]);
                }
            }
        }
    }
}

FOR_EACH_PROCESSOR void multiply_ourselves(i64 m, i64 n, i64 k, float alpha, Matrix<const float> a,
                                           Matrix<const float> b, float beta, Matrix<float> c) {
    own_product(m, n, k, alpha, a, b, beta, c);
}
FOR_EACH_PROCESSOR void multiply_ourselves(i64 m, i64 n, i64 k, double alpha, Matrix<const double> a,
                                           Matrix<const double> b, double beta, Matrix<double> c) {
    own_product(m, n, k, alpha, a, b, beta, c);
}

// The product of a single row, as in a step of generation, for which a library's takes longer to begin than to end. Rows
// of b go by fours: so often is a, or c, not read again.
template <class T>
INLINE void row_product(i64 n, i64 k, T alpha, const T* RESTRICT a, Matrix<const T> b, T beta, T* RESTRICT c) {
    if (beta == T(0)) {
        fill(c, n, T(0));  // what is there already may be anything
    } else if (beta != T(1)) {
        scale_by(c, n, beta);
    }
    const i64 rows = b.form == TRANSPOSED ? n : k;
    i64 i = 0;
    for (; i + 4 <= rows; i += 4) {
        const T* RESTRICT first = b.data + i * b.stride;
        const T* RESTRICT second = first + b.stride;
        const T* RESTRICT third = second + b.stride;
        const T* RESTRICT fourth = third + b.stride;
        if (b.form == TRANSPOSED) {
            T sums[4] = {};
            dot_four(a, first, second, third, fourth, k, sums);
            for (i64 j = 0; j < 4; ++j) c[i + j] += alpha * sums[j];
        } else {
            const T factors[4] = {alpha * a[i], alpha * a[i + 1], alpha * a[i + 2], alpha * a[i + 3]};
            add_four_scaled(c, first, second, third, fourth, n, factors);
        }
    }
    for (; i < rows; ++i) {
        const T* row = b.data + i * b.stride;
        if (b.form == TRANSPOSED) {
            c[i] += alpha * dot(a, row, k);
        } else {
            add_scaled(c, row, n, alpha * a[i]);
        }
    }
}

FOR_EACH_PROCESSOR void multiply_row(i64 n, i64 k, float alpha, const float* a, Matrix<const float> b, float beta,
                                     float* c) {
    row_product(n, k, alpha, a, b, beta, c);
}
FOR_EACH_PROCESSOR void multiply_row(i64 n, i64 k, double alpha, const double* a, Matrix<const double> b, double beta,
                                     double* c) {
    row_product(n, k, alpha, a, b, beta, c);
}

template <class T>
class Products {
  public:
    explicit Products(const Call& call) {
        void* found = std::is_same<T, double>::value ? call.dgemm : call.sgemm;
        std::memcpy(&fortran_, &found, sizeof(found));
    }

    // c [m, n] = alpha * a [m, k] @ b [k, n] + beta * c, where a and b are given as they are or transposed.
    void operator()(i64 m, i64 n, i64 k, T alpha, Matrix<const T> a, Matrix<const T> b, T beta, Matrix<T> c) const {
        if (m == 0 || n == 0) return;
        if (k == 0) {
            if (beta == T(0))
                for (i64 i = 0; i < m; ++i) std::fill_n(c.data + i * c.stride, n, T(0));
            return;
        }
        if (m == 1 && a.form == AS_IS) return multiply_row(n, k, alpha, a.data, b, beta, c.data);
        if (!fortran_) return multiply_ourselves(m, n, k, alpha, a, b, beta, c);
        // Fortran's matrices are column-major: it is told the transposed product, with the factors swapped.
        const char b_form = b.form, a_form = a.form;
        const int rows = int(m), columns = int(n), depth = int(k);
        const int a_stride = int(a.stride), b_stride = int(b.stride), c_stride = int(c.stride);
        fortran_(&b_form, &a_form, &columns, &rows, &depth, &alpha, b.data, &b_stride, a.data, &a_stride, &beta, c.data,
                 &c_stride);
    }

  private:
    using Fortran = void (*)(const char*, const char*, const int*, const int*, const int*, const T*, const T*,
                             const int*, const T*, const int*, const T*, T*, const int*);
    Fortran fortran_;
};

// ---------------------------------------------------------------------------------------------------------------------
// Geometry: which keys a query sees, and which offsets a block meets
// ---------------------------------------------------------------------------------------------------------------------

struct Range {
    i64 begin, end;

    bool empty() const { return end <= begin; }
    i64 size() const { return end - begin; }
    Range within(Range other) const {
        const i64 from = std::max(begin, other.begin);
        return {from, std::max(from, std::min(end, other.end))};
    }
};

// The keys that a query sees by its position; padding may hide some of them.
struct Sight {
    Range tokens;  // from the first token to the last
    bool causal;
    i64 window;  // negative: none

    INLINE Range of(i64 position) const {
        Range range = tokens;
        if (causal) range.end = std::min(range.end, position + 1);
        if (window >= 0) {
            range.begin = std::max(range.begin, position - window);
            range.end = std::min(range.end, position + window + 1);
        }
        range.begin = std::min(range.begin, tokens.end);
        range.end = std::max(range.end, range.begin);
        return range;
    }
};

// Offsets low .. high, both included.
struct Span {
    i64 low, high;

    i64 width() const { return high - low + 1; }
    // From row to row over these offsets: products are slower where rows start at any number.
    i64 stride() const { return (width() + 15) / 16 * 16; }
    bool operator==(Span other) const { return low == other.low && high == other.high; }
    // The offsets of this span that a table with this horizon tells apart; one at least.
    Span told_apart(i64 horizon) const {
        return {std::clamp(low, -horizon, horizon), std::clamp(high, -horizon, horizon)};
    }
};

// Queries first_position .. first_position + rows - 1 against the keys of a range, in positions.
struct Block {
    i64 first_position, rows;
    Range keys;

};

// The offsets that a block meets: those that causality and window leave. One at least.
Span met(const Call& call, const Block& block) {
    Span span{block.keys.begin - (block.first_position + block.rows - 1), block.keys.end - 1 - block.first_position};
    if (call.window >= 0) span = {std::max(span.low, -call.window), std::min(span.high, call.window)};
    if (call.causal) span.high = std::min<i64>(span.high, 0);
    return {span.low, std::max(span.low, span.high)};
}

// A row of a block in three parts: [begin, left) below the span of offsets, [left, right) in it, [right, end) above.
// Columns count from the block's first key; those outside of [begin, end) are hidden.
struct Parts {
    i64 begin, left, right, end;
};

INLINE Parts parts_of(const Block& block, i64 row, const Sight& sight, Span span) {
    const i64 position = block.first_position + row, first = block.keys.begin;
    const Range seen = sight.of(position);
    Parts parts;
    parts.begin = std::clamp(seen.begin, first, block.keys.end) - first;
    parts.end = std::max(parts.begin, std::clamp(seen.end, first, block.keys.end) - first);
    // Both ends of the span are constants: the numbers at `low` and below are one, and so are those from `high` on.
    parts.left = std::clamp(position + span.low + 1 - first, parts.begin, parts.end);
    parts.right = std::clamp(position + span.high - first, parts.left, parts.end);
    return parts;
}

// ---------------------------------------------------------------------------------------------------------------------
// Dropout: Philox 4x32 with ten rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3")
// ---------------------------------------------------------------------------------------------------------------------

struct Dropout {
    std::uint64_t seed = 0;
    std::uint64_t dropped_below = 0;  // of 2^32; zero: nothing is dropped
    double kept = 1;                  // factor of what is kept

    Dropout() = default;
    explicit Dropout(const Call& call)
        : seed(static_cast<std::uint64_t>(call.seed)),
          dropped_below(static_cast<std::uint64_t>(call.dropout * 4294967296.0)),
          kept(call.dropout < 1 ? 1 / (1 - call.dropout) : 0) {}
    bool active() const { return dropped_below > 0; }
};

// Decisions come for so many keys at a time, of eight generators side by side, each of which gives four words.
constexpr i64 LANES = 8, DECISIONS = 4 * LANES;

// The factors, zero or `kept`, of the weights of one query for DECISIONS keys: keys * DECISIONS and on.
template <class T>
INLINE void draw_factors(const Dropout& dropout, std::uint32_t sequence, std::uint32_t query, i64 keys, T* RESTRICT to) {
    std::uint32_t words[4][LANES];
    for (i64 lane = 0; lane < LANES; ++lane) {
        words[0][lane] = static_cast<std::uint32_t>(keys * LANES + lane);
        words[1][lane] = query;
        words[2][lane] = sequence;
        words[3][lane] = 0;
    }
    std::uint32_t first_key = static_cast<std::uint32_t>(dropout.seed);
    std::uint32_t second_key = static_cast<std::uint32_t>(dropout.seed >> 32);
    for (int round = 0; round < 10; ++round) {
#pragma omp simd
        for (i64 lane = 0; lane < LANES; ++lane) {
            const std::uint64_t first = std::uint64_t{0xD2511F53} * words[0][lane];
            const std::uint64_t second = std::uint64_t{0xCD9E8D57} * words[2][lane];
            words[0][lane] = static_cast<std::uint32_t>(second >> 32) ^ words[1][lane] ^ first_key;
            words[1][lane] = static_cast<std::uint32_t>(second);
            words[2][lane] = static_cast<std::uint32_t>(first >> 32) ^ words[3][lane] ^ second_key;
            words[3][lane] = static_cast<std::uint32_t>(first);
        }
        first_key += 0x9E3779B9;
        second_key += 0xBB67AE85;
    }
    const T kept = static_cast<T>(dropout.kept);
    for (i64 word = 0; word < 4; ++word)
#pragma omp simd
        for (i64 lane = 0; lane < LANES; ++lane)
            to[word * LANES + lane] = words[word][lane] >= dropout.dropped_below ? kept : T(0);
}

// The factors of a row's weights for the keys of a range. Returns where that of the first key is; `room` is for
// DECISIONS - 1 more on either side.
template <class T>
INLINE const T* draw_row(const Dropout& dropout, std::uint32_t sequence, i64 query, Range keys, T* room) {
    const i64 first = keys.begin / DECISIONS;
    for (i64 group = first; group * DECISIONS < keys.end; ++group)
        draw_factors(dropout, sequence, static_cast<std::uint32_t>(query), group, room + (group - first) * DECISIONS);
    return room + (keys.begin - first * DECISIONS);
}

// ---------------------------------------------------------------------------------------------------------------------
// Rows of scores
// ---------------------------------------------------------------------------------------------------------------------

template <class T>
INLINE T largest(const T* RESTRICT scores, const T* RESTRICT added, i64 count, T at_least) {
    T most = at_least;
#pragma omp simd reduction(max : most)
    for (i64 j = 0; j < count; ++j) {
        const T score = scores[j] + added[j];
        most = score > most ? score : most;
    }
    return most;
}

// Scores become exponentials; returns their sum.
template <class T>
INLINE T exponentiate(T* RESTRICT scores, const T* RESTRICT added, i64 count, T shift) {
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (i64 j = 0; j < count; ++j) {
        const T e = exponential(scores[j] + added[j] - shift);
        scores[j] = e;
        total += e;
    }
    return total;
}

// Rows of numbers over the offsets of a span, one for each query; stride zero: one for all.
template <class T>
struct OffsetRows {
    T* data = nullptr;
    i64 stride = 0;

    explicit operator bool() const { return data != nullptr; }
    INLINE T* row(i64 i) const { return data + i * stride; }
};

// What both passes know of a block of scores.
template <class T>
struct ScoreRows {
    Block block;
    Sight sight;
    Span span;                     // offsets that the rows below are over
    OffsetRows<const T> relative;  // added to the scores; or nothing
    OffsetRows<T> mass;            // sums of the kept weights per offset; or nothing
    const std::uint8_t* tokens;    // of the block's first key; null where all are
    Dropout dropout;
    std::uint32_t sequence;  // batch and head, for dropout
    i64 first_query;
    T* factors;  // room for a row of dropout's factors
    T* added;    // room for a row of what is added to the scores
    i64 stride;  // from row to row of scores

    INLINE i64 columns() const { return block.keys.size(); }
    // Index, in a row over offsets, of the first column of the middle part.
    INLINE i64 middle(i64 row, const Parts& parts) const {
        if (parts.left == parts.right) return 0;
        return block.keys.begin + parts.left - (block.first_position + row) - span.low;
    }
    // The columns that a row is computed in: those that it sees, and on both sides what makes whole vectors of them. One
    // number at a time, a row's ends would take as long as the rest of a short row.
    INLINE Range computed(const Parts& parts) const {
        constexpr i64 VECTOR = Pieces::ALIGNMENT / static_cast<i64>(sizeof(T));
        return {parts.begin / VECTOR * VECTOR, (parts.end + VECTOR - 1) / VECTOR * VECTOR};
    }
    // Lays a row over offsets out over the computed columns; those that are hidden get another number.
    INLINE void lay_out(const T* numbers, i64 row, const Parts& parts, Range range, T hidden, T* to) const {
        const T low = numbers ? numbers[0] : T(0), high = numbers ? numbers[span.width() - 1] : T(0);
        fill(to + range.begin, parts.begin - range.begin, hidden);
        fill(to + parts.begin, parts.left - parts.begin, low);
        if (numbers) {
            copy(to + parts.left, numbers + middle(row, parts), parts.right - parts.left);
        } else {
            fill(to + parts.left, parts.right - parts.left, T(0));
        }
        fill(to + parts.right, parts.end - parts.right, high);
        fill(to + parts.end, range.end - parts.end, hidden);
    }
    // What is added to a row of scores, in `added`: minus infinity where a key is hidden.
    INLINE void lay_out_added(i64 row, const Parts& parts, Range range) const {
        lay_out(relative ? relative.row(row) : nullptr, row, parts, range, -infinity<T>(), added);
        if (!tokens) return;
#pragma omp simd
        for (i64 j = parts.begin; j < parts.end; ++j) added[j] = tokens[j] ? added[j] : -infinity<T>();
    }
    // Zeros where a row is computed and hidden: a product may have left anything there, and beyond the block nothing has
    // been.
    INLINE void clear_computed(T* row, const Parts& parts, Range range) const {
        fill(row + range.begin, parts.begin - range.begin, T(0));
        fill(row + parts.end, range.end - parts.end, T(0));
    }
    INLINE void clear_hidden(T* row, const Parts& parts) const {
        fill(row, parts.begin, T(0));
        fill(row + parts.end, columns() - parts.end, T(0));
    }
    // Adds a row to sums per offset: each end of the row to one number, its middle where it belongs.
    INLINE void add_per_offset(const OffsetRows<T>& sums, const T* numbers, i64 row, const Parts& parts) const {
        T* to = sums.row(row);
        to[0] += sum(numbers + parts.begin, parts.left - parts.begin);
        add(to + middle(row, parts), numbers + parts.left, parts.right - parts.left);
        to[span.width() - 1] += sum(numbers + parts.right, parts.end - parts.right);
    }
    INLINE const T* draw(i64 row) const { return draw_row(dropout, sequence, first_query + row, block.keys, factors); }
};

template <class T>
struct SoftmaxRows : ScoreRows<T> {
    T* scores;   // [rows, columns], become the kept weights, times the row's sum
    T* largest;  // [rows] so far
    T* sums;     // [rows] so far
    T* output;   // [rows, value_dim] so far
    i64 value_dim;
    bool first;  // nothing is in `output` and `mass` yet
};

template <class T>
INLINE void softmax(const SoftmaxRows<T>& rows) {
    for (i64 i = 0; i < rows.block.rows; ++i) {
        T* scores = rows.scores + i * rows.stride;
        const Parts parts = parts_of(rows.block, i, rows.sight, rows.span);
        if (parts.begin == parts.end) {
            rows.clear_hidden(scores, parts);
            continue;
        }
        const Range range = rows.computed(parts);
        rows.clear_computed(scores, parts, range);
        rows.lay_out_added(i, parts, range);
        const T* added = rows.added + range.begin;
        const T most = largest(scores + range.begin, added, range.size(), rows.largest[i]);
        // Nothing but minus infinity (padding) or NaN so far: the former are no weights, the latter stay NaN.
        const T shift = most == -infinity<T>() ? T(0) : most;
        const T total = exponentiate(scores + range.begin, added, range.size(), shift);
        rows.clear_hidden(scores, parts);

        const T rescale = rows.largest[i] == -infinity<T>() ? T(0) : exponential(rows.largest[i] - shift);
        rows.sums[i] = rows.sums[i] * rescale + total;
        rows.largest[i] = most;
        if (rows.dropout.active()) multiply_by(scores, rows.draw(i), rows.columns());
        if (!rows.first && rescale != T(1)) {
            scale_by(rows.output + i * rows.value_dim, rows.value_dim, rescale);
            if (rows.mass) scale_by(rows.mass.row(i), rows.span.width(), rescale);
        }
        if (rows.mass) rows.add_per_offset(rows.mass, scores, i, parts);
    }
}

template <class T>
struct GradientRows : ScoreRows<T> {
    T* scores;                  // [rows, columns], become the kept weights
    T* gradients;               // [rows, columns]: output gradient . value, become the gradients of the scores
    OffsetRows<const T> mixed;  // output gradient . value table, over offsets; or nothing
    T* mixed_in;                // room for a row of it
    OffsetRows<T> score_mass;   // sums of the scores' gradients per offset; or nothing
    const T* log_sums;          // [rows]
    const T* deltas;            // [rows]: output gradient . output
};

// Scores become the kept weights, and gradients of weights those of scores.
template <bool MIXED, bool DROPPED, class T>
INLINE void differentiate(T* RESTRICT scores, T* RESTRICT gradients, i64 count, const T* RESTRICT added,
                          const T* RESTRICT mixed, const T* RESTRICT factors, T log_sum, T delta) {
#pragma omp simd
    for (i64 j = 0; j < count; ++j) {
        const T weight = exponential(scores[j] + added[j] - log_sum);
        T gradient = gradients[j];
        if constexpr (MIXED) gradient += mixed[j];
        if constexpr (DROPPED) gradient *= factors[j];
        gradients[j] = (gradient - delta) * weight;
        scores[j] = weight;
        if constexpr (DROPPED) scores[j] *= factors[j];
    }
}

template <bool MIXED, bool DROPPED, class T>
INLINE void differentiate(const GradientRows<T>& rows) {
    for (i64 i = 0; i < rows.block.rows; ++i) {
        T* scores = rows.scores + i * rows.stride;
        T* gradients = rows.gradients + i * rows.stride;
        const Parts parts = parts_of(rows.block, i, rows.sight, rows.span);
        if (parts.begin < parts.end) {
            const Range range = rows.computed(parts);
            rows.clear_computed(scores, parts, range);
            rows.clear_computed(gradients, parts, range);
            rows.lay_out_added(i, parts, range);
            if (MIXED) rows.lay_out(rows.mixed.row(i), i, parts, range, T(0), rows.mixed_in);
            const T* factors = DROPPED ? rows.draw(i) : rows.added;
            differentiate<MIXED, DROPPED>(scores + range.begin, gradients + range.begin, range.size(),
                                          rows.added + range.begin, rows.mixed_in + range.begin,
                                          factors + range.begin, rows.log_sums[i], rows.deltas[i]);
            if (rows.mass) rows.add_per_offset(rows.mass, scores, i, parts);
            if (rows.score_mass) rows.add_per_offset(rows.score_mass, gradients, i, parts);
        }
        rows.clear_hidden(scores, parts);
        rows.clear_hidden(gradients, parts);
    }
}

template <class T>
INLINE void differentiate(const GradientRows<T>& rows) {
    if (rows.dropout.active()) {
        rows.mixed ? differentiate<true, true>(rows) : differentiate<false, true>(rows);
    } else {
        rows.mixed ? differentiate<true, false>(rows) : differentiate<false, false>(rows);
    }
}

FOR_EACH_PROCESSOR void softmax_rows(const SoftmaxRows<float>& rows) { softmax(rows); }
FOR_EACH_PROCESSOR void softmax_rows(const SoftmaxRows<double>& rows) { softmax(rows); }
FOR_EACH_PROCESSOR void gradient_rows(const GradientRows<float>& rows) { differentiate(rows); }
FOR_EACH_PROCESSOR void gradient_rows(const GradientRows<double>& rows) { differentiate(rows); }


// ---------------------------------------------------------------------------------------------------------------------
// Tensors in, tensors out
// ---------------------------------------------------------------------------------------------------------------------

template <class E, class T>
INLINE void copy_rows(const E* from, i64 row_stride, i64 column_stride, i64 rows, i64 columns, T* to,
                      const std::uint8_t* tokens) {
    for (i64 i = 0; i < rows; ++i, from += row_stride, to += columns) {
        if (tokens && !tokens[i]) {
            std::fill_n(to, columns, T(0));
        } else if (column_stride == 1) {
#pragma omp simd
            for (i64 j = 0; j < columns; ++j) to[j] = widened(from[j]);
        } else {
            for (i64 j = 0; j < columns; ++j) to[j] = widened(from[j * column_stride]);
        }
    }
}

template <class E, class T>
INLINE void write_rows(const T* from, i64 rows, i64 columns, E* to, i64 row_stride, i64 column_stride) {
    for (i64 i = 0; i < rows; ++i, from += columns, to += row_stride) {
        if (column_stride == 1) {
#pragma omp simd
            for (i64 j = 0; j < columns; ++j) narrow(from[j], to[j]);
        } else {
            for (i64 j = 0; j < columns; ++j) narrow(from[j], to[j * column_stride]);
        }
    }
}

#define FOR_EACH_DTYPE(E, T)                                                                                           \
    FOR_EACH_PROCESSOR void read(const E* from, i64 row_stride, i64 column_stride, i64 rows, i64 columns, T* to,       \
                                 const std::uint8_t* tokens) {                                                         \
        copy_rows(from, row_stride, column_stride, rows, columns, to, tokens);                                         \
    }                                                                                                                  \
    FOR_EACH_PROCESSOR void write(const T* from, i64 rows, i64 columns, E* to, i64 row_stride, i64 column_stride) {    \
        write_rows(from, rows, columns, to, row_stride, column_stride);                                                \
    }
FOR_EACH_DTYPE(float, float)
FOR_EACH_DTYPE(double, double)
FOR_EACH_DTYPE(BFloat16, float)
FOR_EACH_DTYPE(Float16, float)
#undef FOR_EACH_DTYPE

template <class E>
E* at(const Strided& tensor, i64 batch, i64 head, i64 row) {
    return static_cast<E*>(tensor.data) + batch * tensor.batch + head * tensor.head + row * tensor.row;
}

// Rows of a tensor as a matrix: where they are, if products can read them there, or else copied to `room`. Where
// `tokens` are given, the rows of padding come as zeros, whatever stands there.
template <class E, class T>
Matrix<const T> matrix(const Strided& tensor, i64 batch, i64 head, i64 first, i64 rows, i64 columns, T* room,
                       const std::uint8_t* tokens = nullptr) {
    const E* data = at<E>(tensor, batch, head, first);
    if constexpr (std::is_same<E, T>::value) {
        const bool one_by_one = tensor.column == 1 || columns <= 1;
        if (!tokens && one_by_one && tensor.row >= std::max<i64>(1, columns) && tensor.row <= INT_MAX)
            return {data, tensor.row};
    }
    read(data, tensor.row, tensor.column, rows, columns, room, tokens);
    return {room, std::max<i64>(1, columns)};
}

template <class E>
bool all_finite(const Strided& tensor, i64 batch, i64 head, Range rows, i64 columns, const std::uint8_t* tokens) {
    for (i64 row = rows.begin; row < rows.end; ++row) {
        if (tokens && !tokens[row]) continue;
        const E* data = at<E>(tensor, batch, head, row);
        int finite = 1;
        if (tensor.column == 1) {
#pragma omp simd reduction(& : finite)
            for (i64 j = 0; j < columns; ++j) finite &= is_finite(data[j]);
        } else {
            for (i64 j = 0; j < columns; ++j) finite &= is_finite(data[j * tensor.column]);
        }
        if (!finite) return false;
    }
    return true;
}

// ---------------------------------------------------------------------------------------------------------------------
// Tables over offsets
// ---------------------------------------------------------------------------------------------------------------------

// to[o] += factor * from[o] for every offset of a span, where `from` tells fewer apart: the offsets `own` of the span, or
// a single one outside of it.
template <class T>
void spread(T* to, Span span, const T* from, Span own, T factor) {
    const i64 last = own.width() - 1, before = last ? own.low - span.low : 0;
    for (i64 i = 0; i < before; ++i) to[i] += factor * from[0];
    add_scaled(to + before, from, own.width(), factor);
    for (i64 i = before + own.width(); i < span.width(); ++i) to[i] += factor * from[last];
}

// The other way: to[o] += factor * from[o], where `to` tells fewer apart.
template <class T>
void collect(T* to, Span own, const T* from, Span span, T factor) {
    const i64 last = own.width() - 1, before = last ? own.low - span.low : 0, after = before + own.width();
    to[0] += factor * sum(from, before);
    add_scaled(to, from + before, own.width(), factor);
    to[last] += factor * sum(from + after, span.width() - after);
}

// One of the tables, and what is gathered for its gradient.
template <class T>
struct TableView {
    const T* data;
    T* gradient;
    i64 horizon, heads, columns;
    Span reach;  // offsets that any query of the call meets, as far as told apart

    TableView(const Table& table, i64 columns, Span offsets)
        : data(static_cast<const T*>(table.data)), gradient(static_cast<T*>(table.gradient)), horizon(table.horizon),
          heads(table.heads), columns(columns), reach(offsets.told_apart(table.horizon)) {}
    explicit operator bool() const { return data != nullptr; }
    const T* row(i64 head, i64 offset) const {
        return data + ((heads > 1 ? head : 0) * (2 * horizon + 1) + offset + horizon) * columns;
    }
    // Numbers in one task's share of the gradient; zero where none is wanted.
    i64 share() const { return gradient ? reach.width() * columns : 0; }
};

template <class T>
struct Tables {
    TableView<T> bias, native_bias, query, key, value;
    const T* gate;
    T* gate_gradient;
    i64 gate_batch;
    i64 horizon;  // of all but the table on the key

    Tables(const Call& call, Span reach)
        : bias(call.bias, 1, reach), native_bias(call.native_bias, 1, reach),
          query(call.query_table, call.head_dim, reach), key(call.key_table, call.head_dim, reach),
          value(call.value_table, call.value_dim, reach), gate(static_cast<const T*>(call.gate)),
          gate_gradient(static_cast<T*>(call.gate_gradient)), gate_batch(call.gate_batch), horizon(0) {
        for (const TableView<T>* table : {&bias, &native_bias, &query, &value})
            if (*table) horizon = std::max(horizon, table->horizon);
    }
    bool on_scores() const { return bias || native_bias || query; }
    // Whether what is added to the scores differs from query to query beyond its offset.
    bool per_query() const { return query || (bias && gate); }
    const T* gates(i64 heads, i64 queries, i64 batch, i64 head, i64 first) const {
        return gate ? gate + ((gate_batch > 1 ? batch : 0) * heads + head) * queries + first : nullptr;
    }
};

// Rows over offsets for a block of queries: products of queries (or of output gradients) with a table, brought to the
// offsets of the block and gated.
template <class T>
struct RowsRoom {
    T *products, *plain, *gated;

    RowsRoom(Pieces& pieces, i64 rows, i64 width)
        : products(pieces.take<T>(rows * width)), plain(pieces.take<T>(rows * width)),
          gated(pieces.take<T>(rows * width)) {}
};

// A column of such a product: factor * a row of `matrix` . the row of a table, for each row.
template <class T>
INLINE void dot_rows(i64 rows, i64 dim, T factor, Matrix<const T> matrix, const T* of_table, T* to, i64 stride) {
    for (i64 i = 0; i < rows; ++i) to[i * stride] = factor * dot(matrix.data + i * matrix.stride, of_table, dim);
}
FOR_EACH_PROCESSOR void multiply_column(i64 rows, i64 dim, float factor, Matrix<const float> matrix,
                                        const float* of_table, float* to, i64 stride) {
    dot_rows(rows, dim, factor, matrix, of_table, to, stride);
}
FOR_EACH_PROCESSOR void multiply_column(i64 rows, i64 dim, double factor, Matrix<const double> matrix,
                                        const double* of_table, double* to, i64 stride) {
    dot_rows(rows, dim, factor, matrix, of_table, to, stride);
}

// factor * matrix @ table.T over the offsets of `own`. A whole table has an odd number of them, and products that are one
// column wider than whole vectors take as long as for the next whole vector, so that column is taken by itself.
template <class T>
void multiply_table(const TableView<T>& table, i64 head, Span own, i64 rows, T factor, Matrix<const T> matrix,
                    const Products<T>& multiply, T* to) {
    const i64 dim = table.columns, whole = own.width() % 2 ? own.width() - 1 : own.width();
    const T* numbers = table.row(head, own.low);
    multiply(rows, whole, dim, factor, matrix, {numbers, std::max<i64>(1, dim), TRANSPOSED}, T(0), {to, own.stride()});
    if (whole < own.width())
        multiply_column(rows, dim, factor, matrix, numbers + whole * dim, to + whole, own.stride());
}

// What the tables add to the scores of a block of queries, over the offsets of `span`; `query` comes unscaled. Rows
// before the gate are left in `room.plain` where there is a gate.
template <class T>
OffsetRows<const T> rows_on_scores(const Tables<T>& tables, i64 head, Span span, i64 rows, T scale,
                                   Matrix<const T> query, const T* gates, const Products<T>& multiply,
                                   RowsRoom<T>& room) {
    if (!tables.on_scores()) return {};
    const bool only_bias = tables.bias && !tables.native_bias && !tables.query && !gates;
    if (only_bias && tables.bias.horizon == tables.horizon) return {tables.bias.row(head, span.low), 0};

    const Span own = span.told_apart(tables.query.horizon);
    if (tables.query) {
        multiply_table(tables.query, head, own, rows, scale, query, multiply, room.products);
        if (own == span && !tables.bias && !tables.native_bias && !gates) return {room.products, span.stride()};
    }
    const i64 width = span.width(), count = tables.per_query() ? rows : 1;
    for (i64 i = 0; i < count; ++i) {
        T* plain = room.plain + i * span.stride();
        T* gated = room.gated + i * span.stride();
        std::fill_n(plain, width, T(0));
        if (tables.query) spread(plain, span, room.products + i * own.stride(), own, T(1));
        if (tables.bias) {
            const Span told = span.told_apart(tables.bias.horizon);
            spread(plain, span, tables.bias.row(head, told.low), told, T(1));
        }
        // A single row is not gated: then there is only the native bias, which no gate touches.
        const T gate = gates && tables.per_query() ? gates[i] : T(1);
        for (i64 o = 0; o < width; ++o) gated[o] = gate * plain[o];
        if (tables.native_bias) {
            const Span told = span.told_apart(tables.native_bias.horizon);
            spread(gated, span, tables.native_bias.row(head, told.low), told, T(1));
        }
    }
    return {room.gated, tables.per_query() ? span.stride() : 0};
}

// output gradient . value table for a block of queries, over the offsets of `span`, gated. Left in `room.products` over
// the offsets that the table tells apart, not gated.
template <class T>
OffsetRows<const T> rows_on_values(const Tables<T>& tables, i64 head, Span span, i64 rows,
                                   Matrix<const T> output_gradient, const T* gates, const Products<T>& multiply,
                                   RowsRoom<T>& room) {
    if (!tables.value) return {};
    const Span own = span.told_apart(tables.value.horizon);
    multiply_table(tables.value, head, own, rows, T(1), output_gradient, multiply, room.products);
    if (own == span && !gates) return {room.products, span.stride()};
    std::fill_n(room.gated, rows * span.stride(), T(0));
    for (i64 i = 0; i < rows; ++i)
        spread(room.gated + i * span.stride(), span, room.products + i * own.stride(), own, gates ? gates[i] : T(1));
    return {room.gated, span.stride()};
}

// The mass of a block of queries over the offsets that a table tells apart: `mass` itself, or in `room`.
template <class T>
T* collected(T* mass, Span span, Span own, i64 rows, T* room) {
    if (own == span) return mass;
    std::fill_n(room, rows * own.stride(), T(0));
    for (i64 i = 0; i < rows; ++i) collect(room + i * own.stride(), own, mass + i * span.stride(), span, T(1));
    return room;
}

// The term on the key depends on key and offset: a matrix [offsets, keys] of a block, which row i meets diagonally.
template <class T>
struct KeyRows {
    Block block;
    Sight sight;
    Span span;          // offsets of the matrix
    const T* products;  // scale * key table . key
    T* mass;            // the same shape: sums of the scores' gradients, times the gates; or null
    const T* gates;     // [rows] or null
    T* gate_gradients;  // [rows], added to; or null

    // What add_to and gather share: visit(first column, count, first offset, step), step 1 on the diagonal.
    template <class Visit>
    void each_part(i64 row, const Visit& visit) const {
        const Parts parts = parts_of(block, row, sight, span);
        const i64 middle = block.keys.begin + parts.left - (block.first_position + row) - span.low;
        visit(parts.begin, parts.left, i64{0}, i64{0});
        if (parts.right > parts.left) visit(parts.left, parts.right, middle, i64{1});
        visit(parts.right, parts.end, span.width() - 1, i64{0});
    }
    void add_to(T* scores, i64 stride) const {
        const i64 columns = block.keys.size();
        for (i64 i = 0; i < block.rows; ++i) {
            const T gate = gates ? gates[i] : T(1);
            T* row = scores + i * stride;
            each_part(i, [&](i64 begin, i64 end, i64 offset, i64 step) {
                const T* from = products + offset * columns;
                for (i64 j = begin; j < end; ++j, from += step * columns) row[j] += gate * from[j];
            });
        }
    }
    void gather(const T* gradients, i64 stride) const {
        const i64 columns = block.keys.size();
        for (i64 i = 0; i < block.rows; ++i) {
            const T gate = gates ? gates[i] : T(1);
            const T* row = gradients + i * stride;
            T of_gate = 0;
            each_part(i, [&](i64 begin, i64 end, i64 offset, i64 step) {
                T* to = mass + offset * columns;
                const T* from = products + offset * columns;
                for (i64 j = begin; j < end; ++j, to += step * columns, from += step * columns) {
                    to[j] += gate * row[j];
                    of_gate += row[j] * from[j];
                }
            });
            if (gate_gradients) gate_gradients[i] += of_gate;
        }
    }
};

// ---------------------------------------------------------------------------------------------------------------------
// Attention: what the forward and the backward pass share
// ---------------------------------------------------------------------------------------------------------------------

i64 pieces_of(i64 length, i64 piece) { return (length + piece - 1) / piece; }

// Queries and keys in a block of scores.
struct BlockSize {
    i64 rows, columns;
};

// Measured. Where a block's queries see different keys, part of the block is computed for nothing, so it has fewer rows.
// Of the problem's shape alone, never of the number of threads: results would depend on it.
BlockSize block_size(const Call& call) {
    const i64 rows = call.causal || call.window >= 0 ? 64 : 128;
    return {std::clamp<i64>(call.queries, 1, rows), std::clamp<i64>(call.keys, 1, 512)};
}

template <class E, class T>
class Attention {
  protected:
    explicit Attention(const Call& call)
        : call_(call), size_(block_size(call)), multiply_(call), dropout_(call), scale_(static_cast<T>(call.scale)),
          tables_(call, met(call, Block{call.query_offset, call.queries, {0, call.keys}})),
          query_blocks_(pieces_of(call.queries, size_.rows)) {}

    const std::uint8_t* tokens(i64 batch) const { return call_.tokens ? call_.tokens + batch * call_.keys : nullptr; }

    // What the queries of a sequence may see at all.
    Sight sight(i64 batch) const {
        Range range{0, call_.keys};
        if (const std::uint8_t* is_token = tokens(batch)) {
            while (range.begin < range.end && !is_token[range.begin]) ++range.begin;
            while (range.end > range.begin && !is_token[range.end - 1]) --range.end;
        }
        return {range, call_.causal != 0, call_.window};
    }
    // The keys that some query among `rows` from `position` on may see.
    static Range seen(const Sight& sight, i64 position, i64 rows) {
        const Range first = sight.of(position), last = sight.of(position + rows - 1);
        return {first.begin, std::max(first.begin, last.end)};
    }
    // The flags of a block's keys if some of them are padding, else null.
    const std::uint8_t* padding_among(i64 batch, Range keys) const {
        const std::uint8_t* is_token = tokens(batch);
        if (!is_token || !std::memchr(is_token + keys.begin, 0, static_cast<std::size_t>(keys.size()))) return nullptr;
        return is_token + keys.begin;
    }
    // Queries that can go into one block. A product with a weight of zero still brings in what is not finite, so where
    // a row of `tensor` (keys or values) is hidden from some of the queries only and not finite, each goes by itself.
    i64 rows_at_once(const Strided& tensor, i64 columns, const Sight& sight, i64 batch, i64 key_head, i64 position,
                     i64 rows) const {
        const Range first = sight.of(position), last = sight.of(position + rows - 1);
        const Range entering{first.end, last.end}, leaving{first.begin, last.begin};
        for (Range range : {entering, leaving})
            if (!all_finite<E>(tensor, batch, key_head, range, columns, tokens(batch))) return 1;
        return rows;
    }
    // The widest span of offsets that a block meets.
    i64 widest() const {
        const i64 offsets = size_.rows + call_.keys - 1;
        return Span{1, std::min(2 * tables_.horizon + 1, offsets)}.stride();
    }
    i64 widest_on_keys() const {
        return tables_.key ? std::min(2 * tables_.key.horizon + 1, size_.rows + size_.columns - 1) : 0;
    }
    std::uint32_t sequence(i64 batch, i64 head) const { return static_cast<std::uint32_t>(batch * call_.heads + head); }

    // scale * key table . key over the offsets of a block, into `products`.
    Span multiply_keys(i64 head, const Block& block, Matrix<const T> keys, T* products) const {
        const Span span = met(call_, block).told_apart(tables_.key.horizon);
        const Matrix<const T> table{tables_.key.row(head, span.low), std::max<i64>(1, call_.head_dim)};
        keys.form = TRANSPOSED;
        multiply_(span.width(), block.keys.size(), call_.head_dim, scale_, table, keys, T(0),
                  {products, block.keys.size()});
        return span;
    }
    // Scores: factor * a @ b.T.
    void multiply_rows(i64 m, i64 n, i64 k, T factor, Matrix<const T> a, Matrix<const T> b, T* to) const {
        b.form = TRANSPOSED;
        multiply_(m, n, k, factor, a, b, T(0), {to, stride()});
    }
    // From row to row of scores. A power of two would put a column of them in a few places of the cache.
    i64 stride() const { return size_.columns + Pieces::ALIGNMENT / static_cast<i64>(sizeof(T)); }

    const Call& call_;
    BlockSize size_;
    Products<T> multiply_;
    Dropout dropout_;
    T scale_;
    Tables<T> tables_;
    i64 query_blocks_;
};

// ---------------------------------------------------------------------------------------------------------------------
// Forward
// ---------------------------------------------------------------------------------------------------------------------

template <class E, class T>
class Forward : Attention<E, T> {
  public:
    explicit Forward(const Call& call) : Attention<E, T>(call) {}

    Status run() {
        Pieces counted;
        Room{counted, *this};
        const Memory memory(counted.used() * workers(call_));
        if (memory.failed()) return OUT_OF_MEMORY;
        ::run(call_, call_.batch * call_.heads * query_blocks_, [&](i64 worker, i64 task) {
            Pieces pieces(memory.data() + worker * counted.used());
            Room room(pieces, *this);
            const i64 head = task / query_blocks_ % call_.heads, batch = task / query_blocks_ / call_.heads;
            attend(room, batch, head, task % query_blocks_ * size_.rows);
        });
        return DONE;
    }

  private:
    using Attention<E, T>::call_;
    using Attention<E, T>::size_;
    using Attention<E, T>::multiply_;
    using Attention<E, T>::scale_;
    using Attention<E, T>::tables_;
    using Attention<E, T>::query_blocks_;

    // A worker's memory.
    struct Room {
        T *query, *key, *value;  // copies, where products can't read the tensors
        T *scores, *largest, *sums, *output;
        RowsRoom<T> relative;
        T *mass, *own_mass;
        T* key_products;
        T *factors, *added;

        Room(Pieces& pieces, const Forward& f)
            : query(pieces.take<T>(f.size_.rows * f.call_.head_dim)),
              key(pieces.take<T>(f.size_.columns * f.call_.head_dim)),
              value(pieces.take<T>(f.size_.columns * f.call_.value_dim)),
              scores(pieces.take<T>(f.size_.rows * f.stride())), largest(pieces.take<T>(f.size_.rows)),
              sums(pieces.take<T>(f.size_.rows)), output(pieces.take<T>(f.size_.rows * f.call_.value_dim)),
              relative(pieces, f.size_.rows, f.widest()), mass(pieces.take<T>(f.size_.rows * f.widest())),
              own_mass(pieces.take<T>(f.size_.rows * f.widest())),
              key_products(pieces.take<T>(f.widest_on_keys() * f.size_.columns)),
              factors(pieces.take<T>(f.size_.columns + 2 * DECISIONS)), added(pieces.take<T>(f.stride())) {}
    };

    void attend(Room& room, i64 batch, i64 head, i64 first_query) const {
        const i64 rows = std::min(size_.rows, call_.queries - first_query);
        const i64 key_head = head / (call_.heads / call_.key_heads);
        const Sight sight = this->sight(batch);
        const i64 at_once = this->rows_at_once(call_.value, call_.value_dim, sight, batch, key_head,
                                               call_.query_offset + first_query, rows);
        for (i64 i = 0; i < rows; i += at_once)
            attend_block(room, sight, batch, head, key_head, first_query + i, std::min(at_once, rows - i));
    }

    void attend_block(Room& room, const Sight& sight, i64 batch, i64 head, i64 key_head, i64 first_query,
                      i64 rows) const {
        const i64 dim = call_.head_dim, value_dim = call_.value_dim, position = call_.query_offset + first_query;
        const Range seen = this->seen(sight, position, rows);
        const Span span = met(call_, {position, rows, seen}).told_apart(tables_.horizon);
        const T* gates = tables_.gates(call_.heads, call_.queries, batch, head, first_query);
        std::fill_n(room.sums, rows, T(0));
        std::fill_n(room.largest, rows, -infinity<T>());
        if (seen.empty()) return finish(room, batch, head, first_query, rows);

        const Matrix<const T> query = matrix<E>(call_.query, batch, head, first_query, rows, dim, room.query);
        SoftmaxRows<T> softmax{};
        softmax.sight = sight;
        softmax.span = span;
        softmax.relative =
            rows_on_scores(tables_, head, span, rows, scale_, query, gates, multiply_, room.relative);
        if (tables_.value) {
            softmax.mass = {room.mass, span.stride()};
            std::fill_n(room.mass, rows * span.stride(), T(0));
        }
        softmax.dropout = this->dropout_;
        softmax.sequence = this->sequence(batch, head);
        softmax.first_query = first_query;
        softmax.factors = room.factors;
        softmax.added = room.added;
        softmax.stride = this->stride();
        softmax.scores = room.scores;
        softmax.largest = room.largest;
        softmax.sums = room.sums;
        softmax.output = room.output;
        softmax.value_dim = value_dim;

        for (i64 begin = seen.begin; begin < seen.end; begin += size_.columns) {
            const Range keys{begin, std::min(seen.end, begin + size_.columns)};
            const Block block{position, rows, keys};
            const std::uint8_t* padding = this->padding_among(batch, keys);
            const Matrix<const T> key =
                matrix<E>(call_.key, batch, key_head, begin, keys.size(), dim, room.key, padding);
            this->multiply_rows(rows, keys.size(), dim, scale_, query, key, room.scores);
            if (tables_.key) {
                const Span on_keys = this->multiply_keys(head, block, key, room.key_products);
                KeyRows<T>{block, sight, on_keys, room.key_products, nullptr, gates, nullptr}.add_to(
                    room.scores, this->stride());
            }
            softmax.block = block;
            softmax.tokens = padding;
            softmax.first = begin == seen.begin;
            softmax_rows(softmax);
            const Matrix<const T> value =
                matrix<E>(call_.value, batch, key_head, begin, keys.size(), value_dim, room.value, padding);
            multiply_(rows, value_dim, keys.size(), T(1), {room.scores, this->stride()}, value, softmax.first ? T(0) : T(1),
                      {room.output, std::max<i64>(1, value_dim)});
        }
        if (tables_.value) {
            const Span own = span.told_apart(tables_.value.horizon);
            T* mass = collected(room.mass, span, own, rows, room.own_mass);
            if (gates)
                for (i64 i = 0; i < rows; ++i) scale_by(mass + i * own.stride(), own.width(), gates[i]);
            const i64 stride = std::max<i64>(1, value_dim);
            multiply_(rows, value_dim, own.width(), T(1), {mass, own.stride()},
                      {tables_.value.row(head, own.low), stride}, T(1), {room.output, stride});
        }
        finish(room, batch, head, first_query, rows);
    }

    // Divides by the sums and writes the block. A query that has seen nothing gets zeros, and no gradient: its
    // exponentials, less a log of infinity, are zero.
    void finish(Room& room, i64 batch, i64 head, i64 first_query, i64 rows) const {
        const i64 value_dim = call_.value_dim;
        T* log_sums = static_cast<T*>(call_.log_sums) + (batch * call_.heads + head) * call_.queries + first_query;
        for (i64 i = 0; i < rows; ++i) {
            T* output = room.output + i * value_dim;
            if (room.sums[i] == T(0)) {
                std::fill_n(output, value_dim, T(0));
                log_sums[i] = infinity<T>();
            } else {
                scale_by(output, value_dim, T(1) / room.sums[i]);
                log_sums[i] = room.largest[i] + std::log(room.sums[i]);
            }
        }
        write(room.output, rows, value_dim, at<E>(call_.output, batch, head, first_query), call_.output.row,
              call_.output.column);
    }
};

// ---------------------------------------------------------------------------------------------------------------------
// Backward
// ---------------------------------------------------------------------------------------------------------------------

// A task is a sequence, some heads of the keys, and a piece of the keys: it owns their gradients. It goes through the
// queries of all heads that share these keys. What several tasks add to (the gradients of queries, tables and gates) is
// kept apart, a share for each, and summed in the end in the order of the tasks.
template <class E, class T>
class Backward : Attention<E, T> {
  public:
    explicit Backward(const Call& call)
        : Attention<E, T>(call), groups_(call.key_heads ? call.heads / call.key_heads : 0) {
        const i64 sequences = std::max<i64>(1, call.batch * call.key_heads);
        const i64 wanted = std::min(pieces_of(ENOUGH_TASKS, sequences), pieces_of(call.keys, size_.columns));
        piece_ = pieces_of(pieces_of(std::max<i64>(1, call.keys), std::max<i64>(1, wanted)), 64) * 64;
        pieces_ = std::max<i64>(1, pieces_of(call.keys, piece_));
        together_ = std::clamp<i64>(pieces_ * sequences / MANY_TASKS, 1, std::max<i64>(1, call.key_heads));
        parts_ = pieces_of(call.key_heads, together_);
    }

    Status run() {
        Pieces counted, counted_shares;
        Room{counted, *this};
        Shares{counted_shares, *this};
        const Memory memory(counted.used() * workers(call_) + counted_shares.used());
        if (memory.failed()) return OUT_OF_MEMORY;
        Pieces of_shares(memory.data() + counted.used() * workers(call_));
        const Shares shares(of_shares, *this);
        // The first piece of the keys is the most work where attention is causal, so it comes first.
        ::run(call_, pieces_ * call_.batch * parts_, [&](i64 worker, i64 task) {
            Pieces pieces(memory.data() + worker * counted.used());
            Room room(pieces, *this);
            const i64 part = task % parts_, batch = task / parts_ % call_.batch, piece = task / parts_ / call_.batch;
            const i64 last = std::min(call_.key_heads, (part + 1) * together_);
            for (i64 key_head = part * together_; key_head < last; ++key_head)
                differentiate_piece(room, shares, batch, key_head, piece);
        });
        sum_shares(shares);
        return DONE;
    }

  private:
    using Attention<E, T>::call_;
    using Attention<E, T>::size_;
    using Attention<E, T>::multiply_;
    using Attention<E, T>::scale_;
    using Attention<E, T>::tables_;
    using Attention<E, T>::query_blocks_;

    // Keys are cut in pieces until there are so many tasks: enough for a processor of today, and each piece costs
    // another copy of the queries' gradients.
    static constexpr i64 ENOUGH_TASKS = 16;
    // Where there are more tasks than this, one takes several heads, with one share of the tables that these have in
    // common: memory that is touched for the first time takes, at 128 tokens, as long as a product with a table.
    static constexpr i64 MANY_TASKS = 64;

    // A worker's memory.
    struct Room {
        T *query, *key, *value, *output, *output_gradient;  // copies, where products can't read the tensors
        T *scores, *gradients, *deltas;
        T *query_gradient, *key_gradient, *value_gradient;
        RowsRoom<T> relative, mixed;
        T *mass, *score_mass, *own_mass;
        T *key_products, *key_mass;
        T* gate_gradient;
        T *factors, *added, *mixed_in;

        Room(Pieces& pieces, const Backward& b)
            : query(pieces.take<T>(b.size_.rows * b.call_.head_dim)),
              key(pieces.take<T>(b.size_.columns * b.call_.head_dim)),
              value(pieces.take<T>(b.size_.columns * b.call_.value_dim)),
              output(pieces.take<T>(b.size_.rows * b.call_.value_dim)),
              output_gradient(pieces.take<T>(b.size_.rows * b.call_.value_dim)),
              scores(pieces.take<T>(b.size_.rows * b.stride())),
              gradients(pieces.take<T>(b.size_.rows * b.stride())), deltas(pieces.take<T>(b.size_.rows)),
              query_gradient(pieces.take<T>(b.size_.rows * b.call_.head_dim)),
              key_gradient(pieces.take<T>(b.piece_ * b.call_.head_dim)),
              value_gradient(pieces.take<T>(b.piece_ * b.call_.value_dim)),
              relative(pieces, b.size_.rows, b.widest()), mixed(pieces, b.size_.rows, b.widest()),
              mass(pieces.take<T>(b.size_.rows * b.widest())), score_mass(pieces.take<T>(b.size_.rows * b.widest())),
              own_mass(pieces.take<T>(b.size_.rows * b.widest())),
              key_products(pieces.take<T>(b.widest_on_keys() * b.size_.columns)),
              key_mass(pieces.take<T>(b.widest_on_keys() * b.size_.columns)),
              gate_gradient(pieces.take<T>(b.size_.rows)),
              factors(pieces.take<T>(b.size_.columns + 2 * DECISIONS)), added(pieces.take<T>(b.stride())),
              mixed_in(pieces.take<T>(b.stride())) {}
    };

    // What tasks add to. Of each table [slots, reach, columns]; of queries and gates as below.
    struct Shares {
        T *bias, *native_bias, *query_table, *key_table, *value_table;
        T* query;  // [pieces, batch, heads, queries, head_dim], where the keys are in several pieces
        T* gate;   // [pieces, batch, heads, queries]

        Shares(Pieces& pieces, const Backward& b)
            : bias(pieces.take<T>(b.table_slots(b.tables_.bias) * b.tables_.bias.share())),
              native_bias(pieces.take<T>(b.table_slots(b.tables_.native_bias) * b.tables_.native_bias.share())),
              query_table(pieces.take<T>(b.table_slots(b.tables_.query) * b.tables_.query.share())),
              key_table(pieces.take<T>(b.table_slots(b.tables_.key) * b.tables_.key.share())),
              value_table(pieces.take<T>(b.table_slots(b.tables_.value) * b.tables_.value.share())),
              query(pieces.take<T>(b.pieces_ > 1 && b.call_.query_gradient.data
                                       ? b.slots() * b.call_.queries * b.call_.head_dim : 0)),
              gate(pieces.take<T>(b.tables_.gate_gradient ? b.slots() * b.call_.queries : 0)) {}
    };
    i64 slots() const { return pieces_ * call_.batch * call_.heads; }
    // One for each head or, of a table that all heads share, for each task.
    i64 table_slots(const TableView<T>& table) const {
        return table.heads > 1 ? slots() : pieces_ * call_.batch * parts_;
    }

    // A task's shares for one of its heads; null where no gradient is wanted.
    struct Share {
        T *bias, *native_bias, *query_table, *key_table, *value_table, *query, *gate;
    };
    Share share(const Shares& shares, i64 piece, i64 batch, i64 head) const {
        const i64 sequence = piece * call_.batch + batch, slot = sequence * call_.heads + head;
        const i64 heads = together_ * groups_, task = sequence * parts_ + head / heads;
        const auto of = [&](T* all, const TableView<T>& table) -> T* {
            if (!table.gradient) return nullptr;
            T* mine = all + (table.heads > 1 ? slot : task) * table.share();
            if (table.heads > 1 || head % heads == 0) std::fill_n(mine, table.share(), T(0));
            return mine;
        };
        const i64 queries = call_.queries;
        return {of(shares.bias, tables_.bias),
                of(shares.native_bias, tables_.native_bias),
                of(shares.query_table, tables_.query),
                of(shares.key_table, tables_.key),
                of(shares.value_table, tables_.value),
                pieces_ > 1 && call_.query_gradient.data ? shares.query + slot * queries * call_.head_dim : nullptr,
                tables_.gate_gradient ? shares.gate + slot * queries : nullptr};
    }

    void differentiate_piece(Room& room, const Shares& shares, i64 batch, i64 key_head, i64 piece) const {
        const Range keys{piece * piece_, std::min(call_.keys, (piece + 1) * piece_)};
        std::fill_n(room.key_gradient, keys.size() * call_.head_dim, T(0));
        std::fill_n(room.value_gradient, keys.size() * call_.value_dim, T(0));
        const Sight sight = this->sight(batch);
        for (i64 head = key_head * groups_; head < (key_head + 1) * groups_; ++head) {
            const Share mine = share(shares, piece, batch, head);
            for (i64 first = 0; first < call_.queries; first += size_.rows) {
                const i64 rows = std::min(size_.rows, call_.queries - first);
                const i64 at_once = this->rows_at_once(call_.key, call_.head_dim, sight, batch, key_head,
                                                       call_.query_offset + first, rows);
                for (i64 i = 0; i < rows; i += at_once)
                    differentiate_block(room, mine, sight, keys, batch, head, key_head, first + i,
                                        std::min(at_once, rows - i));
            }
        }
        if (call_.key_gradient.data)
            write(room.key_gradient, keys.size(), call_.head_dim,
                  at<E>(call_.key_gradient, batch, key_head, keys.begin), call_.key_gradient.row,
                  call_.key_gradient.column);
        if (call_.value_gradient.data)
            write(room.value_gradient, keys.size(), call_.value_dim,
                  at<E>(call_.value_gradient, batch, key_head, keys.begin), call_.value_gradient.row,
                  call_.value_gradient.column);
    }

    void differentiate_block(Room& room, const Share& mine, const Sight& sight, Range piece, i64 batch, i64 head,
                             i64 key_head, i64 first_query, i64 rows) const {
        const i64 dim = call_.head_dim, value_dim = call_.value_dim, position = call_.query_offset + first_query;
        const i64 dim_stride = std::max<i64>(1, dim), value_stride = std::max<i64>(1, value_dim);
        const Range seen = this->seen(sight, position, rows).within(piece);
        std::fill_n(room.query_gradient, rows * dim, T(0));
        std::fill_n(room.gate_gradient, rows, T(0));
        if (seen.empty()) return finish(room, mine, batch, head, first_query, rows);

        const Span span = met(call_, {position, rows, seen}).told_apart(tables_.horizon);
        const T* gates = tables_.gates(call_.heads, call_.queries, batch, head, first_query);
        const Matrix<const T> query = matrix<E>(call_.query, batch, head, first_query, rows, dim, room.query);
        const Matrix<const T> output_gradient =
            matrix<E>(call_.output_gradient, batch, head, first_query, rows, value_dim, room.output_gradient);
        const Matrix<const T> output = matrix<E>(call_.output, batch, head, first_query, rows, value_dim, room.output);
        for (i64 i = 0; i < rows; ++i)
            room.deltas[i] = dot(output_gradient.data + i * output_gradient.stride, output.data + i * output.stride,
                                 value_dim);

        GradientRows<T> gradient{};
        gradient.sight = sight;
        gradient.span = span;
        gradient.relative =
            rows_on_scores(tables_, head, span, rows, scale_, query, gates, multiply_, room.relative);
        gradient.mixed =
            rows_on_values(tables_, head, span, rows, output_gradient, gates, multiply_, room.mixed);
        gradient.mass = mass_of_values(room, mine, span, rows);
        gradient.score_mass = mass_of_scores(room, mine, span, rows);
        gradient.dropout = this->dropout_;
        gradient.sequence = this->sequence(batch, head);
        gradient.first_query = first_query;
        gradient.factors = room.factors;
        gradient.added = room.added;
        gradient.mixed_in = room.mixed_in;
        gradient.stride = this->stride();
        gradient.scores = room.scores;
        gradient.gradients = room.gradients;
        gradient.log_sums =
            static_cast<const T*>(call_.log_sums) + (batch * call_.heads + head) * call_.queries + first_query;
        gradient.deltas = room.deltas;

        for (i64 begin = seen.begin; begin < seen.end; begin += size_.columns) {
            const Range keys{begin, std::min(seen.end, begin + size_.columns)};
            const i64 columns = keys.size();
            const Block block{position, rows, keys};
            const std::uint8_t* padding = this->padding_among(batch, keys);
            const Matrix<const T> key = matrix<E>(call_.key, batch, key_head, begin, columns, dim, room.key, padding);
            const Matrix<const T> value =
                matrix<E>(call_.value, batch, key_head, begin, columns, value_dim, room.value, padding);
            this->multiply_rows(rows, columns, dim, scale_, query, key, room.scores);
            this->multiply_rows(rows, columns, value_dim, T(1), output_gradient, value, room.gradients);
            KeyRows<T> on_keys{block, sight, {0, 0}, room.key_products, room.key_mass, gates,
                               mine.gate ? room.gate_gradient : nullptr};
            if (tables_.key) {
                on_keys.span = this->multiply_keys(head, block, key, room.key_products);
                on_keys.add_to(room.scores, this->stride());
            }
            gradient.block = block;
            gradient.tokens = padding;
            gradient_rows(gradient);

            T* key_gradient = room.key_gradient + (begin - piece.begin) * dim;
            T* value_gradient = room.value_gradient + (begin - piece.begin) * value_dim;
            const Matrix<const T> weights{room.scores, this->stride(), TRANSPOSED},
                gradients{room.gradients, this->stride()}, transposed{room.gradients, this->stride(), TRANSPOSED};
            if (call_.value_gradient.data)
                multiply_(columns, value_dim, rows, T(1), weights, output_gradient, T(1),
                          {value_gradient, value_stride});
            if (call_.query_gradient.data)
                multiply_(rows, dim, columns, scale_, gradients, key, T(1), {room.query_gradient, dim_stride});
            if (call_.key_gradient.data)
                multiply_(columns, dim, rows, scale_, transposed, query, T(1), {key_gradient, dim_stride});
            if (tables_.key) differentiate_keys(room, mine, on_keys, head, key, key_gradient);
        }
        differentiate_scores(room, mine, span, head, query, gates, rows, gradient.score_mass.stride != 0);
        differentiate_values(room, mine, span, output_gradient, gates, rows);
        finish(room, mine, batch, head, first_query, rows);
    }

    // Where sums of weights per offset are needed: for the gradients of the value table and of its gate.
    OffsetRows<T> mass_of_values(Room& room, const Share& mine, Span span, i64 rows) const {
        if (!tables_.value || !(mine.value_table || mine.gate)) return {};
        std::fill_n(room.mass, rows * span.stride(), T(0));
        return {room.mass, span.stride()};
    }

    // Where sums of the scores' gradients per offset are needed. Those of a bias alone are summed over the queries too,
    // right in its share.
    OffsetRows<T> mass_of_scores(Room& room, const Share& mine, Span span, i64 rows) const {
        const bool needed = mine.bias || mine.native_bias || (tables_.query && (mine.query_table || wants_queries())) ||
                            (mine.gate && tables_.on_scores());
        if (!needed) return {};
        const bool only_bias = mine.bias && !tables_.native_bias && !tables_.query && !tables_.gate;
        if (only_bias && tables_.bias.horizon == tables_.horizon)
            return {mine.bias + (span.low - tables_.bias.reach.low), 0};
        std::fill_n(room.score_mass, rows * span.stride(), T(0));
        return {room.score_mass, span.stride()};
    }
    bool wants_queries() const { return call_.query_gradient.data != nullptr; }

    // From sums per offset to the gradients of bias, native bias, query table, queries and gates.
    void differentiate_scores(Room& room, const Share& mine, Span span, i64 head, Matrix<const T> query, const T* gates,
                              i64 rows, bool by_query) const {
        if (!by_query) return;
        const i64 width = span.width(), dim = call_.head_dim, dim_stride = std::max<i64>(1, dim);
        for (i64 i = 0; i < rows; ++i) {
            T* mass = room.score_mass + i * span.stride();
            if (mine.native_bias) add_to_share(mine.native_bias, tables_.native_bias, mass, span, T(1));
            if (mine.gate && (tables_.bias || tables_.query))
                room.gate_gradient[i] += dot(mass, room.relative.plain + i * span.stride(), width);
            if (gates) scale_by(mass, width, gates[i]);
            if (mine.bias) add_to_share(mine.bias, tables_.bias, mass, span, T(1));
        }
        if (!tables_.query) return;
        const Span own = span.told_apart(tables_.query.horizon);
        T* mass = collected(room.score_mass, span, own, rows, room.own_mass);
        if (wants_queries())
            multiply_(rows, dim, own.width(), scale_, {mass, own.stride()}, {tables_.query.row(head, own.low), dim_stride},
                      T(1), {room.query_gradient, dim_stride});
        if (mine.query_table)
            multiply_(own.width(), dim, rows, scale_, {mass, own.stride(), TRANSPOSED}, query, T(1),
                      {mine.query_table + (own.low - tables_.query.reach.low) * dim, dim_stride});
    }

    void add_to_share(T* share, const TableView<T>& table, const T* mass, Span span, T factor) const {
        const Span own = span.told_apart(table.horizon);
        collect(share + (own.low - table.reach.low), own, mass, span, factor);
    }

    // From sums of weights per offset to the gradients of the value table and its gates.
    void differentiate_values(Room& room, const Share& mine, Span span, Matrix<const T> output_gradient, const T* gates,
                              i64 rows) const {
        if (!tables_.value || !(mine.value_table || mine.gate)) return;
        const Span own = span.told_apart(tables_.value.horizon);
        const i64 width = own.width(), dim = call_.value_dim;
        T* mass = collected(room.mass, span, own, rows, room.own_mass);
        for (i64 i = 0; i < rows && gates; ++i) {
            const i64 row = i * own.stride();
            if (mine.gate) room.gate_gradient[i] += dot(mass + row, room.mixed.products + row, width);
            scale_by(mass + row, width, gates[i]);
        }
        if (mine.value_table)
            multiply_(width, dim, rows, T(1), {mass, own.stride(), TRANSPOSED}, output_gradient, T(1),
                      {mine.value_table + (own.low - tables_.value.reach.low) * dim, std::max<i64>(1, dim)});
    }

    // The term on the key, for one block of scores.
    void differentiate_keys(Room& room, const Share& mine, const KeyRows<T>& on_keys, i64 head, Matrix<const T> key,
                            T* key_gradient) const {
        const i64 columns = on_keys.block.keys.size(), width = on_keys.span.width(), dim = call_.head_dim;
        const i64 dim_stride = std::max<i64>(1, dim);
        std::fill_n(room.key_mass, width * columns, T(0));
        on_keys.gather(room.gradients, this->stride());
        if (call_.key_gradient.data)
            multiply_(columns, dim, width, scale_, {room.key_mass, columns, TRANSPOSED},
                      {tables_.key.row(head, on_keys.span.low), dim_stride}, T(1), {key_gradient, dim_stride});
        if (mine.key_table)
            multiply_(width, dim, columns, scale_, {room.key_mass, columns}, key, T(1),
                      {mine.key_table + (on_keys.span.low - tables_.key.reach.low) * dim, dim_stride});
    }

    void finish(Room& room, const Share& mine, i64 batch, i64 head, i64 first_query, i64 rows) const {
        const i64 dim = call_.head_dim;
        if (mine.query) {
            std::copy_n(room.query_gradient, rows * dim, mine.query + first_query * dim);
        } else if (wants_queries()) {
            write(room.query_gradient, rows, dim, at<E>(call_.query_gradient, batch, head, first_query),
                  call_.query_gradient.row, call_.query_gradient.column);
        }
        if (mine.gate) std::copy_n(room.gate_gradient, rows, mine.gate + first_query);
    }

    void sum_shares(const Shares& shares) const {
        sum_table(tables_.bias, shares.bias);
        sum_table(tables_.native_bias, shares.native_bias);
        sum_table(tables_.query, shares.query_table);
        sum_table(tables_.key, shares.key_table);
        sum_table(tables_.value, shares.value_table);
        if (pieces_ > 1 && wants_queries()) sum_queries(shares.query);
        if (tables_.gate_gradient) sum_gates(shares.gate);
    }

    void sum_table(const TableView<T>& table, const T* shares) const {
        if (!table.gradient) return;
        const i64 numbers = (2 * table.horizon + 1) * table.columns, share = table.share();
        const i64 before = (table.reach.low + table.horizon) * table.columns;
        std::fill_n(table.gradient, table.heads * numbers, T(0));
        const i64 at_once = 512, parts = pieces_of(share, at_once);
        ::run(call_, table.heads * parts, [&](i64, i64 task) {
            const i64 table_head = task / parts, begin = task % parts * at_once, count = std::min(at_once, share - begin);
            T* to = table.gradient + table_head * numbers + before + begin;
            for (i64 slot = 0; slot < table_slots(table); ++slot)
                if (table.heads == 1 || slot % call_.heads == table_head) add(to, shares + slot * share + begin, count);
        });
    }

    void sum_queries(T* shares) const {
        const i64 numbers = call_.queries * call_.head_dim, sequences = call_.batch * call_.heads;
        ::run(call_, sequences, [&](i64, i64 task) {
            T* first = shares + task * numbers;
            for (i64 piece = 1; piece < pieces_; ++piece) add(first, first + piece * sequences * numbers, numbers);
            write(first, call_.queries, call_.head_dim,
                  at<E>(call_.query_gradient, task / call_.heads, task % call_.heads, 0), call_.query_gradient.row,
                  call_.query_gradient.column);
        });
    }

    void sum_gates(const T* shares) const {
        const i64 numbers = call_.heads * call_.queries;
        std::fill_n(tables_.gate_gradient, tables_.gate_batch * numbers, T(0));
        for (i64 piece = 0; piece < pieces_; ++piece)
            for (i64 batch = 0; batch < call_.batch; ++batch)
                add(tables_.gate_gradient + (tables_.gate_batch > 1 ? batch : 0) * numbers,
                    shares + (piece * call_.batch + batch) * numbers, numbers);
    }

    i64 groups_;  // heads that share a head of the keys
    i64 piece_;   // keys in a piece
    i64 pieces_;
    i64 together_;  // heads of the keys in a task
    i64 parts_;     // tasks for a piece of a sequence
};

template <template <class, class> class Pass>
int run_pass(const Call& call) {
    switch (call.dtype) {
        case FLOAT32: return Pass<float, float>(call).run();
        case FLOAT64: return Pass<double, double>(call).run();
        case BFLOAT16: return Pass<BFloat16, float>(call).run();
        case FLOAT16: return Pass<Float16, float>(call).run();
        default: return UNKNOWN_DTYPE;
    }
}

}  // namespace

// The size of the record that the caller must hand over: a library of another release has another.
EXPORT std::int64_t hf_relpos_call_size() { return sizeof(Call); }

// Both return a Status. Nothing is kept between calls, and any number of threads may call at once.
EXPORT int hf_relpos_forward(const Call* call) { return run_pass<Forward>(*call); }
EXPORT int hf_relpos_backward(const Call* call) { return run_pass<Backward>(*call); }
