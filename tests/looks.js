// What is wrong with how a page, or a plot, looks: each fault in words. `tests/test_browser.py` runs it in the page.

const TOUCH = 2; // pixels by which boxes may meet: fonts round
const READABLE = 0.6; // of its size, a picture whose words are 13 pixels high

/** An element and all that it is in, up to the page itself. */
function ancestors(element) {
  const found = [];
  for (let at = element; at && at !== document.body; at = at.parentElement) found.push(at);
  return found;
}

/** Where an element can be seen: within all that clips it. Null where it is hidden. */
function seen(element) {
  if (!element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) return null;
  let { left, top, right, bottom } = { left: 0, top: -Infinity, right: innerWidth, bottom: Infinity };
  for (const at of ancestors(element)) {
    if (getComputedStyle(at).overflow === "visible") continue;
    const box = at.getBoundingClientRect();
    left = Math.max(left, box.left); right = Math.min(right, box.right);
    top = Math.max(top, box.top); bottom = Math.min(bottom, box.bottom);
  }
  return { left, top, right, bottom };
}

/** Each line of each text, with its whole box, and what is seen of it. */
function lines() {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    const window = node.data.trim() && !element.closest("svg, script, style, noscript") && seen(element);
    if (!window) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      const left = Math.max(box.left, window.left), right = Math.min(box.right, window.right);
      const top = Math.max(box.top, window.top), bottom = Math.min(box.bottom, window.bottom);
      if (right - left > 1 && bottom - top > 1) found.push({ node, element, box, left, right, top, bottom });
    }
  }
  return found.sort((one, other) => one.top - other.top);
}

/** The first words of something. */
const words = (text) => JSON.stringify(text.trim().replace(/\s+/g, " ").slice(0, 40));

/** Whether two boxes lie on each other by more than their edges. */
function meet(one, other) {
  const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
  const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
  return wide > TOUCH && high > 0.4 * Math.min(one.bottom - one.top, other.bottom - other.top);
}

/** Pairs of boxes, sorted by their tops, that lie on each other. */
function* overlaps(boxes) {
  for (let first = 0; first < boxes.length; first++) {
    for (let second = first + 1; second < boxes.length && boxes[second].top < boxes[first].bottom; second++) {
      if (meet(boxes[first], boxes[second])) yield [boxes[first], boxes[second]];
    }
  }
}

/** The faults of a page. */
function faultsOfPage() {
  const faults = [];
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) faults.push(`the page is ${wide} pixels wide and scrolls sideways`);
  const texts = lines();
  for (const [one, other] of overlaps(texts)) {
    if (one.node !== other.node) faults.push(`${words(one.node.data)} lies on ${words(other.node.data)}`);
  }
  for (const { node, element, box } of texts) {
    const boxes = ancestors(element);
    if (boxes.some((one) => /auto|scroll/.test(getComputedStyle(one).overflowX))) continue;
    const block = boxes.find((one) => getComputedStyle(one).display !== "inline");
    const cutting = boxes.find((one) => /hidden|clip/.test(getComputedStyle(one).overflowX));
    for (const [frame, how] of [[block, "sticks out of its box"], [cutting, "is cut off"]]) {
      if (frame && box.right > frame.getBoundingClientRect().right + TOUCH) faults.push(`${words(node.data)} ${how}`);
    }
  }
  for (const image of document.images) {
    if (!image.complete || !image.naturalWidth) faults.push(`the picture ${words(image.src)} is not shown`);
    if (image.width < READABLE * image.naturalWidth) faults.push(`the picture ${words(image.alt)} is shown too small`);
    if (!image.alt.trim()) faults.push(`the picture ${words(image.src)} has no words for who cannot see it`);
  }
  return faults;
}


/** The texts of a picture: as text, or as matplotlib draws them, with the words in a comment beside the glyphs. */
function labels(within) {
  const drawn = [...within.querySelectorAll('g[id^="text_"]')].map((group) => {
    const comment = [...group.childNodes].find((node) => node.nodeType === Node.COMMENT_NODE);
    return { element: group, text: comment ? comment.data.trim() : "" };
  });
  const written = [...within.querySelectorAll("text")].map((element) => ({ element, text: element.textContent }));
  return [...drawn, ...written].filter(({ text }) => text);
}

/** The words beside an axis, or beside all axes of the figure that run like it. */
function labelOf(axis, upright) {
  const own = labels(axis).find(({ element }) => element.parentElement === axis);
  const ofAll = labels(axis.ownerSVGElement).filter(({ element }) => element.parentElement.id.startsWith("figure_"));
  const along = ofAll.find(({ element }) => {
    const { width, height } = element.getBoundingClientRect();
    return upright === height > width;
  });
  return (own ?? along)?.text ?? "";
}

/** The faults of a picture (SVG). */
function faultsOfPicture(units) {
  const faults = [];
  const frame = document.querySelector("svg").getBoundingClientRect();
  const boxes = labels(document).map(({ element, text }) => {
    const { left, right, top, bottom } = element.getBoundingClientRect();
    return { text, left, right, top, bottom };
  });
  if (!boxes.length) faults.push("it has no words");
  for (const { text, left, right, top, bottom } of boxes) {
    if (left < frame.left || right > frame.right || top < frame.top || bottom > frame.bottom) {
      faults.push(`${words(text)} is cut off`);
    }
  }
  for (const [one, other] of overlaps(boxes.sort((one, other) => one.top - other.top))) {
    faults.push(`${words(one.text)} lies on ${words(other.text)}`);
  }
  for (const axis of document.querySelectorAll('g[id^="matplotlib.axis_"]')) {
    const ticks = [...axis.children].filter(({ id }) => /^[xy]tick_/.test(id)).flatMap(labels);
    if (!ticks.some(({ text }) => /^[-−]?[\d.]+$/.test(text))) continue; // names speak for themselves
    const upright = axis.querySelector('g[id^="ytick_"]') !== null;
    const label = labelOf(axis, upright);
    if (!label) faults.push(`the axis with ${words(ticks.map(({ text }) => text).join(", "))} has no label`);
    for (const [quantity, unit] of Object.entries(units)) {
      if (label.includes(quantity) && !label.includes(unit)) faults.push(`the axis ${words(label)} has no unit`);
    }
  }
  return faults;
}
