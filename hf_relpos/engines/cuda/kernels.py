"""Attention with relative terms in Triton: forward, gradients of queries and rows, gradients of keys and values.

Of relative positions the kernels know two tables over the offsets ``d = key position - query position``:

- *Rows* that are added to the scores, one for each query or one for all: nothing where ``d <= -HORIZON`` (a constant
  of a query changes no weight), the last number where ``d >= HORIZON``.
- The *mass* of the weights at each offset, one row for each query, and its gradient. In place of that at the left end
  is the mass of all weights, which tells it; without dropout that is one, and its gradient changes nothing.

So for a block of queries there are three regions of keys: left of the band attention is plain, right of it but for one
number of each query. Nothing is added by atomics, so runs are bit-equal.

Tables of the *band* have rows that are one number longer than the stride of the tiles which are read of them::

    i * (STRIDE + 1) + d + ...  =  i * STRIDE + j + ...            with d = j - i - offset

so that a tile is a rectangle: aligned, without an index. Beyond the horizon it holds numbers of other rows, which are
neither used nor written. A row for all queries is *skewed* once, to the table that a block of queries reads tiles of.

Scores and rows are in units of log 2. The log-sum of a query that sees no key is infinity, so its weights are zero.
"""

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("The kernels for CUDA are written in Triton, which PyTorch's builds for CUDA bring.") from error

# Regions, in the order of the keys.
LEFT = tl.constexpr(0)
BAND = tl.constexpr(1)
RIGHT = tl.constexpr(2)

# What is added to the scores.
NOTHING = tl.constexpr(0)
ROWS = tl.constexpr(1)
SKEWED = tl.constexpr(2)

# Rounds of Philox: the fewest with which it passes all tests of its authors (Salmon et al. 2011, table 2).
ROUNDS = tl.constexpr(7)

# Of so many values of these no kernel is made for each.
VARIED = ["tokens_batch", "heads", "groups", "queries", "keys", "offset", "window"]


@triton.jit
def _regions_of_keys(
    m0, keys, offset, window,
    BLOCK: tl.constexpr, HORIZON: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Where for the block of queries from ``m0`` the regions of keys begin, and where the last one ends."""
    first = m0 + offset
    last = first + BLOCK - 1
    begin = 0
    end = keys
    if CAUSAL:
        end = tl.minimum(end, tl.maximum(last + 1, 0))
    if WINDOWED:
        begin = tl.maximum(first - window, 0) // BLOCK * BLOCK
        end = tl.minimum(end, tl.maximum(last + window + 1, 0))
    end = tl.cdiv(end, BLOCK) * BLOCK
    begin = tl.minimum(begin, end)
    band = tl.maximum(first - HORIZON + 1, 0) // BLOCK * BLOCK
    band = tl.minimum(tl.maximum(band, begin), end)
    right = tl.cdiv(tl.maximum(last + HORIZON, 0), BLOCK) * BLOCK
    right = tl.minimum(tl.maximum(right, band), end)
    return begin, band, right, end


@triton.jit
def _regions_of_queries(
    n0, queries, offset, window,
    BLOCK: tl.constexpr, HORIZON: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """The same for the block of keys from ``n0``: right of the band of its first queries, left of the last ones'."""
    first = n0 - offset
    last = first + BLOCK - 1
    begin = 0
    end = queries
    if CAUSAL:
        begin = tl.maximum(first, 0) // BLOCK * BLOCK
    if WINDOWED:
        begin = tl.maximum(begin, tl.maximum(first - window, 0) // BLOCK * BLOCK)
        end = tl.minimum(end, tl.maximum(last + window + 1, 0))
    end = tl.cdiv(end, BLOCK) * BLOCK
    begin = tl.minimum(begin, end)
    band = tl.maximum(first - HORIZON + 1, 0) // BLOCK * BLOCK
    band = tl.minimum(tl.maximum(band, begin), end)
    left = tl.cdiv(tl.maximum(last + HORIZON, 0), BLOCK) * BLOCK
    left = tl.minimum(tl.maximum(left, band), end)
    return begin, band, left, end


@triton.jit
def _band(T, at_m, at_n, floor, HORIZON: tl.constexpr):
    """Where a table of the band has its numbers for some queries and keys."""
    return T + at_m * (2 * HORIZON + 16) + (at_n - floor + HORIZON)


@triton.jit
def _band_column(T, at_m, inside, offset, floor, place, HORIZON: tl.constexpr):
    """One number of each row of a table of the band: the first, at place 0, or the last, at 2 * HORIZON."""
    return tl.load(T + at_m * (2 * HORIZON + 17) + (offset - floor + place), mask=inside, other=0.0)


@triton.jit
def _own(d, HORIZON: tl.constexpr):
    """Which offsets have a number for themselves."""
    return (d > -HORIZON) & (d < HORIZON)


@triton.jit
def _clipped(numbers, ends, d, HORIZON: tl.constexpr, CAUSAL: tl.constexpr):
    """A tile of a table of the band, with what holds beyond the horizon."""
    numbers = tl.where(d > -HORIZON, numbers, 0.0)
    if not CAUSAL:
        numbers = tl.where(d < HORIZON, numbers, ends)
    return numbers


@triton.jit
def _skewed(T, at_m, at_n, m0, floor, BLOCK: tl.constexpr, HORIZON: tl.constexpr):
    """Where a skewed table has its numbers for the block of queries from ``m0`` and some keys."""
    return T + (at_m - m0) * (2 * HORIZON + 4 * BLOCK + 16) + (at_n - m0 - floor + HORIZON + 2 * BLOCK)


@triton.jit
def _visible(
    numbers, otherwise, d, seen, window, HIDES: tl.constexpr, HIDES_AHEAD: tl.constexpr, WINDOWED: tl.constexpr
):  # fmt: skip
    """The numbers of the pairs that may attend, another one for those that may not."""
    if HIDES:
        numbers = tl.where(seen, numbers, otherwise)
    if HIDES_AHEAD:
        numbers = tl.where(d <= 0, numbers, otherwise)
    if WINDOWED:
        numbers = tl.where((d <= window) & (d >= -window), numbers, otherwise)
    return numbers


@triton.jit
def _kept(seed, at_m, at_n, keys, dropout):
    """Which weights are not dropped: the same in every pass."""
    return tl.rand(seed, at_m * keys + at_n, ROUNDS) >= dropout


@triton.jit
def _states(X, at, row, columns, seen, HIDES: tl.constexpr):
    """Keys or values at some places: zeros where nobody may look, so that what is there is of no matter."""
    at = X + at[:, None] * row + columns[None, :]
    if HIDES:
        states = tl.load(at, mask=seen[:, None], other=0.0)
    else:
        states = tl.load(at)
    return states


@triton.jit(do_not_specialize=VARIED)
def forward(
    Q, K, V, R, TOKENS, SEED, OUTPUT, SUMS, SCORES, MASS,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, tokens_batch,
    heads, groups, queries, keys, offset, floor, window, scale, dropout, gain,
    DIM: tl.constexpr, BLOCK: tl.constexpr, HORIZON: tl.constexpr, ADDED: tl.constexpr, MIXES: tl.constexpr,
    HIDES: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For a block of queries: output and log-sums. With MIXES also the scores of the band, and two masses of each row.

    The first number of a row of the mass is that of all weights, the last that at the horizon and beyond; the others
    follow from the scores. Dropped weights have none.
    """
    blocks = tl.cdiv(queries, BLOCK)
    m0 = tl.program_id(0) % blocks * BLOCK
    head = (tl.program_id(0) // blocks).to(tl.int64)
    b = head // heads
    h = head % heads
    of_band = head * blocks * BLOCK * (2 * HORIZON + 17)
    Q += b * q_batch + h * q_head
    K += b * k_batch + h // groups * k_head
    V += b * v_batch + h // groups * v_head
    TOKENS += b * tokens_batch
    SCORES += of_band
    at_m = m0 + tl.arange(0, BLOCK)
    columns = tl.arange(0, DIM)
    inside = at_m < queries
    ends = tl.zeros([BLOCK], tl.float32)
    if ADDED == ROWS:
        R += of_band
        if not CAUSAL:
            ends = _band_column(R, at_m, inside, offset, floor, 2 * HORIZON, HORIZON)
    if ADDED == SKEWED:
        R += h * BLOCK * (2 * HORIZON + 4 * BLOCK + 16)
        if not CAUSAL:
            ends += tl.load(R + 2 * HORIZON + 4 * BLOCK + 15)
    seed = head
    if DROPS:
        seed += tl.load(SEED)
    q = tl.load(Q + at_m[:, None] * q_row + columns[None, :], mask=inside[:, None], other=0.0)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    every = tl.zeros([BLOCK], tl.float32)
    beyond = tl.zeros([BLOCK], tl.float32)
    output = tl.zeros([BLOCK, DIM], tl.float32)
    bounds = _regions_of_keys(m0, keys, offset, window, BLOCK, HORIZON, CAUSAL, WINDOWED)
    for REGION in tl.static_range(3):
        if not (CAUSAL and REGION == RIGHT):
            for n0 in range(bounds[REGION], bounds[REGION + 1], BLOCK):
                n0 = tl.multiple_of(n0, BLOCK)
                at_n = n0 + tl.arange(0, BLOCK)
                seen = at_n >= 0
                if HIDES:
                    seen = tl.load(TOKENS + at_n) != 0
                d = at_n[None, :] - at_m[:, None] - offset
                k = _states(K, at_n, k_row, columns, seen, HIDES)
                s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
                if REGION == BAND:
                    # Scaled before rows are added: these would else be read into the product, and not ahead of it.
                    s *= scale
                    if ADDED == ROWS:
                        r = tl.load(_band(R, at_m[:, None], at_n[None, :], floor, HORIZON))
                        s += _clipped(r, ends[:, None], d, HORIZON, CAUSAL)
                    if ADDED == SKEWED:
                        s += tl.load(_skewed(R, at_m[:, None], at_n[None, :], m0, floor, BLOCK, HORIZON))
                s = _visible(s, float("-inf"), d, seen[None, :], window, HIDES, CAUSAL and REGION == BAND, WINDOWED)
                # Outside the band the scale joins the maximum, and what is added too: per query, not per pair.
                highest = tl.max(s, 1)
                if REGION != BAND:
                    highest *= scale
                if REGION == RIGHT:
                    highest += ends
                new = tl.maximum(top, highest)
                base = tl.where(new == float("-inf"), 0.0, new)
                if REGION == LEFT:
                    p = tl.math.exp2(s * scale - base[:, None])
                elif REGION == BAND:
                    p = tl.math.exp2(s - base[:, None])
                else:
                    p = tl.math.exp2(s * scale - (base - ends)[:, None])
                shrink = tl.math.exp2(top - base)
                total = total * shrink + tl.sum(p, 1)
                top = new
                if DROPS:
                    kept = _kept(seed, at_m[:, None], at_n[None, :], keys, dropout)
                    p = tl.where(kept, p, 0.0)
                if MIXES and REGION == BAND:
                    if DROPS:
                        s = tl.where(kept, s, float("-inf"))
                    tl.store(_band(SCORES, at_m[:, None], at_n[None, :], floor, HORIZON), s, mask=_own(d, HORIZON))
                if MIXES:
                    every = every * shrink + tl.sum(p, 1)
                    if REGION == BAND:
                        beyond = beyond * shrink + tl.sum(tl.where(d >= HORIZON, p, 0.0), 1)
                    elif REGION == RIGHT:
                        beyond = beyond * shrink + tl.sum(p, 1)
                v = _states(V, at_n, v_row, columns, seen, HIDES)
                output = tl.dot(p.to(v.dtype), v, output * shrink[:, None], input_precision=PRECISION)
    blind = total == 0.0
    share = gain / tl.where(blind, 1.0, total)
    at = OUTPUT + b * queries * heads * DIM + h * DIM + at_m.to(tl.int64)[:, None] * heads * DIM + columns[None, :]
    tl.store(at, (output * share[:, None]).to(OUTPUT.dtype.element_ty), mask=inside[:, None])
    sums = tl.where(blind, float("inf"), top + tl.math.log2(tl.where(blind, 1.0, total)))
    tl.store(SUMS + head * queries + at_m, sums, mask=inside)
    if MIXES:
        MASS += head * queries * (2 * HORIZON + 1)
        tl.store(MASS + at_m * (2 * HORIZON + 1), every * share, mask=inside)
        tl.store(MASS + at_m * (2 * HORIZON + 1) + 2 * HORIZON, beyond * share, mask=inside)


@triton.jit(do_not_specialize=VARIED)
def backward_queries(
    Q, K, V, G, R, MG, TOKENS, SEED, SUMS, DELTA, DQ, DR, DIAGONALS, DENDS,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, g_batch, g_head, g_row, tokens_batch,
    heads, groups, queries, keys, offset, floor, window, scale, dropout, gain, plain_scale,
    DIM: tl.constexpr, BLOCK: tl.constexpr, HORIZON: tl.constexpr, ADDED: tl.constexpr, MIXES: tl.constexpr,
    HIDES: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
    LEARNS: tl.constexpr,
):  # fmt: skip
    """For a block of queries: their gradient. With LEARNS also that of what is added to their scores.

    G and MG are the gradients of the output and of the mass. The gradient of a row for all queries is summed along the
    diagonals of each tile, which makes one row for each block.
    """
    blocks = tl.cdiv(queries, BLOCK)
    m0 = tl.program_id(0) % blocks * BLOCK
    head = (tl.program_id(0) // blocks).to(tl.int64)
    b = head // heads
    h = head % heads
    of_band = head * blocks * BLOCK * (2 * HORIZON + 17)
    Q += b * q_batch + h * q_head
    K += b * k_batch + h // groups * k_head
    V += b * v_batch + h // groups * v_head
    G += b * g_batch + h * g_head
    TOKENS += b * tokens_batch
    MG += of_band
    DR += of_band
    DIAGONALS += tl.program_id(0).to(tl.int64) * (2 * HORIZON + 4 * BLOCK + 16)
    at_m = m0 + tl.arange(0, BLOCK)
    columns = tl.arange(0, DIM)
    inside = at_m < queries
    ends = tl.zeros([BLOCK], tl.float32)
    mass_ends = tl.zeros([BLOCK], tl.float32)
    if ADDED == ROWS:
        R += of_band
        if not CAUSAL:
            ends = _band_column(R, at_m, inside, offset, floor, 2 * HORIZON, HORIZON)
    if ADDED == SKEWED:
        R += h * BLOCK * (2 * HORIZON + 4 * BLOCK + 16)
        if not CAUSAL:
            ends += tl.load(R + 2 * HORIZON + 4 * BLOCK + 15)
    every = tl.zeros([BLOCK], tl.float32)
    if MIXES and DROPS:
        every = _band_column(MG, at_m, inside, offset, floor, 0, HORIZON)
    if MIXES and not CAUSAL:
        mass_ends = _band_column(MG, at_m, inside, offset, floor, 2 * HORIZON, HORIZON)
    seed = head
    if DROPS:
        seed += tl.load(SEED)
    q = tl.load(Q + at_m[:, None] * q_row + columns[None, :], mask=inside[:, None], other=0.0)
    g = tl.load(G + at_m[:, None] * g_row + columns[None, :], mask=inside[:, None], other=0.0)
    sums = tl.load(SUMS + head * queries + at_m, mask=inside, other=float("inf"))
    delta = tl.load(DELTA + head * queries + at_m, mask=inside, other=0.0)
    dq = tl.zeros([BLOCK, DIM], tl.float32)
    dends = tl.zeros([BLOCK], tl.float32)
    carry = tl.zeros([BLOCK], tl.float32)
    bounds = _regions_of_keys(m0, keys, offset, window, BLOCK, HORIZON, CAUSAL, WINDOWED)
    for REGION in tl.static_range(3):
        if not (CAUSAL and REGION == RIGHT):
            for n0 in range(bounds[REGION], bounds[REGION + 1], BLOCK):
                n0 = tl.multiple_of(n0, BLOCK)
                at_n = n0 + tl.arange(0, BLOCK)
                seen = at_n >= 0
                if HIDES:
                    seen = tl.load(TOKENS + at_n) != 0
                d = at_n[None, :] - at_m[:, None] - offset
                k = _states(K, at_n, k_row, columns, seen, HIDES)
                v = _states(V, at_n, v_row, columns, seen, HIDES)
                s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
                dp = tl.dot(g, tl.trans(v), input_precision=PRECISION)
                if REGION == LEFT:
                    p = tl.math.exp2(s * scale - sums[:, None])
                elif REGION == BAND:
                    s *= scale
                    if ADDED == ROWS:
                        r = tl.load(_band(R, at_m[:, None], at_n[None, :], floor, HORIZON))
                        s += _clipped(r, ends[:, None], d, HORIZON, CAUSAL)
                    if ADDED == SKEWED:
                        s += tl.load(_skewed(R, at_m[:, None], at_n[None, :], m0, floor, BLOCK, HORIZON))
                    p = tl.math.exp2(s - sums[:, None])
                    if MIXES:
                        mg = tl.load(_band(MG, at_m[:, None], at_n[None, :], floor, HORIZON))
                        dp += _clipped(mg, mass_ends[:, None], d, HORIZON, CAUSAL)
                else:
                    p = tl.math.exp2(s * scale - (sums - ends)[:, None])
                    if MIXES:
                        dp += mass_ends[:, None]
                p = _visible(p, 0.0, d, seen[None, :], window, HIDES, CAUSAL and REGION == BAND, WINDOWED)
                if DROPS:
                    if MIXES:
                        dp += every[:, None]
                    dp = tl.where(_kept(seed, at_m[:, None], at_n[None, :], keys, dropout), dp * gain, 0.0)
                ds = p * (dp - delta[:, None])
                dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
                if LEARNS and REGION == RIGHT:
                    dends += tl.sum(ds, 1)
                if LEARNS and REGION == BAND and ADDED == ROWS:
                    tl.store(_band(DR, at_m[:, None], at_n[None, :], floor, HORIZON), ds, mask=_own(d, HORIZON))
                    if not CAUSAL:
                        dends += tl.sum(tl.where(d >= HORIZON, ds, 0.0), 1)
                if LEARNS and REGION == BAND and ADDED == SKEWED:
                    # Query r turned by r places: a diagonal is now a column, but its part that is in the tile before
                    # is carried on from there.
                    places = tl.arange(0, BLOCK)[None, :] + tl.arange(0, BLOCK)[:, None]
                    turned = tl.gather(ds, places % BLOCK, 1)
                    part = tl.sum(tl.where(places >= BLOCK, turned, 0.0), 0)
                    at = n0 - m0 - floor + HORIZON + BLOCK + tl.arange(0, BLOCK)
                    tl.store(DIAGONALS + at, carry + part)
                    carry = tl.sum(tl.where(places < BLOCK, turned, 0.0), 0)
            if LEARNS and REGION == BAND and ADDED == SKEWED:
                at = bounds[2] - m0 - floor + HORIZON + BLOCK + tl.arange(0, BLOCK)
                tl.store(DIAGONALS + at, carry, mask=bounds[1] < bounds[2])
    at = DQ + head * queries * DIM + at_m[:, None] * DIM + columns[None, :]
    tl.store(at, (dq * plain_scale).to(DQ.dtype.element_ty), mask=inside[:, None])
    if LEARNS and not CAUSAL:
        tl.store(DENDS + head * queries + at_m, dends, mask=inside)


@triton.jit(do_not_specialize=VARIED)
def backward_keys(
    Q, K, V, G, R, MG, TOKENS, SEED, SUMS, DELTA, DK, DV,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, g_batch, g_head, g_row, tokens_batch,
    heads, groups, queries, keys, offset, floor, window, scale, dropout, gain, plain_scale,
    DIM: tl.constexpr, BLOCK: tl.constexpr, HORIZON: tl.constexpr, ADDED: tl.constexpr, MIXES: tl.constexpr,
    HIDES: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For a block of keys and values and one head of the queries: their gradients. Tiles are transposed here."""
    blocks = tl.cdiv(keys, BLOCK)
    n0 = tl.program_id(0) % blocks * BLOCK
    head = (tl.program_id(0) // blocks).to(tl.int64)
    b = head // heads
    h = head % heads
    of_band = head * tl.cdiv(queries, BLOCK) * BLOCK * (2 * HORIZON + 17)
    Q += b * q_batch + h * q_head
    K += b * k_batch + h // groups * k_head
    V += b * v_batch + h // groups * v_head
    G += b * g_batch + h * g_head
    MG += of_band
    SUMS += head * queries
    DELTA += head * queries
    at_n = n0 + tl.arange(0, BLOCK)
    columns = tl.arange(0, DIM)
    seen = at_n >= 0
    if HIDES:
        seen = tl.load(TOKENS + b * tokens_batch + at_n) != 0
    ends = tl.zeros([BLOCK], tl.float32)
    mass_ends = tl.zeros([BLOCK], tl.float32)
    if ADDED == ROWS:
        R += of_band
    if ADDED == SKEWED:
        R += h * BLOCK * (2 * HORIZON + 4 * BLOCK + 16)
        if not CAUSAL:
            ends += tl.load(R + 2 * HORIZON + 4 * BLOCK + 15)
    seed = head
    if DROPS:
        seed += tl.load(SEED)
    k = _states(K, at_n, k_row, columns, seen, HIDES)
    v = _states(V, at_n, v_row, columns, seen, HIDES)
    dk = tl.zeros([BLOCK, DIM], tl.float32)
    dv = tl.zeros([BLOCK, DIM], tl.float32)
    bounds = _regions_of_queries(n0, queries, offset, window, BLOCK, HORIZON, CAUSAL, WINDOWED)
    for REGION in tl.static_range(3):
        if not (CAUSAL and REGION == RIGHT):
            for m0 in range(bounds[2 - REGION], bounds[3 - REGION], BLOCK):
                m0 = tl.multiple_of(m0, BLOCK)
                at_m = m0 + tl.arange(0, BLOCK)
                inside = at_m < queries
                d = at_n[:, None] - at_m[None, :] - offset
                q = tl.load(Q + at_m[:, None] * q_row + columns[None, :], mask=inside[:, None], other=0.0)
                g = tl.load(G + at_m[:, None] * g_row + columns[None, :], mask=inside[:, None], other=0.0)
                sums = tl.load(SUMS + at_m, mask=inside, other=float("inf"))
                delta = tl.load(DELTA + at_m, mask=inside, other=0.0)
                if ADDED == ROWS and REGION != LEFT and not CAUSAL:
                    ends = _band_column(R, at_m, inside, offset, floor, 2 * HORIZON, HORIZON)
                if MIXES and REGION != LEFT and not CAUSAL:
                    mass_ends = _band_column(MG, at_m, inside, offset, floor, 2 * HORIZON, HORIZON)
                s = tl.dot(k, tl.trans(q), input_precision=PRECISION)
                dp = tl.dot(v, tl.trans(g), input_precision=PRECISION)
                if REGION == LEFT:
                    p = tl.math.exp2(s * scale - sums[None, :])
                elif REGION == BAND:
                    s *= scale
                    if ADDED == ROWS:
                        r = tl.load(_band(R, at_m[None, :], at_n[:, None], floor, HORIZON))
                        s += _clipped(r, ends[None, :], d, HORIZON, CAUSAL)
                    if ADDED == SKEWED:
                        s += tl.load(_skewed(R, at_m[None, :], at_n[:, None], m0, floor, BLOCK, HORIZON))
                    p = tl.math.exp2(s - sums[None, :])
                    if MIXES:
                        mg = tl.load(_band(MG, at_m[None, :], at_n[:, None], floor, HORIZON))
                        dp += _clipped(mg, mass_ends[None, :], d, HORIZON, CAUSAL)
                else:
                    p = tl.math.exp2(s * scale - (sums - ends)[None, :])
                    if MIXES:
                        dp += mass_ends[None, :]
                p = _visible(p, 0.0, d, seen[:, None], window, HIDES, CAUSAL and REGION == BAND, WINDOWED)
                w = p
                if DROPS:
                    if MIXES:
                        dp += _band_column(MG, at_m, inside, offset, floor, 0, HORIZON)[None, :]
                    kept = _kept(seed, at_m[None, :], at_n[:, None], keys, dropout)
                    w = tl.where(kept, p * gain, 0.0)
                    dp = tl.where(kept, dp * gain, 0.0)
                dv = tl.dot(w.to(g.dtype), g, dv, input_precision=PRECISION)
                ds = p * (dp - delta[None, :])
                dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    there = at_n < keys
    at = head * keys * DIM + at_n[:, None] * DIM + columns[None, :]
    tl.store(DK + at, (dk * plain_scale).to(DK.dtype.element_ty), mask=there[:, None])
    tl.store(DV + at, dv.to(DV.dtype.element_ty), mask=there[:, None])
