// The enlarged image closer: at the size of its own pixels, and beyond. Dragging and the arrow keys move it.
import { make, number } from "/static/dom.js";

const STEP = 1.5, MOST = 8, MOVE = 0.25; // of the frame
const FACTORS = { "+": STEP, "=": STEP, "-": 1 / STEP, _: 1 / STEP };
const MOVES = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

// Zoom into the image that fills a frame; `whole` is the address of all of its pixels, or null.
// `point` is where it is zoomed into first, as shares of its width and height.
export function makeZoom(frame, image, whole, point = [0.5, 0.5]) {
  const words = make("output", { className: "zoom", hidden: true });
  let scale = 1, x = 0, y = 0, isExact = false, hasAsked = false; // 1: all of it is in the frame

  // How many pixels of the screen one of the image takes when all of it is in the frame.
  const fit = () => {
    const { clientWidth: width, clientHeight: height } = frame;
    return devicePixelRatio * Math.min(width / (image.naturalWidth || 1), height / (image.naturalHeight || 1));
  };
  const exact = () => Math.max(1 / fit(), 1);
  const most = () => MOST * exact();
  const middle = () => [frame.clientWidth / 2, frame.clientHeight / 2];

  // Where one side of the image begins: so that it fills the frame, or else in its middle; and on a pixel of the
  // screen, where the frame begins at `edge`.
  const held = (at, frameSize, size, edge) => {
    const [least, most] = size > frameSize ? [frameSize - size, 0] : Array(2).fill((frameSize - size) / 2);
    const place = edge + Math.min(most, Math.max(least, at));
    return Math.round(place * devicePixelRatio) / devicePixelRatio - edge;
  };

  // Its size and place in the frame.
  function place() {
    const { clientWidth, clientHeight } = frame, { left, top } = frame.getBoundingClientRect();
    const shown = (scale * fit()) / devicePixelRatio;
    const [width, height] = [image.naturalWidth * shown, image.naturalHeight * shown];
    [x, y] = [held(x, clientWidth, width, left), held(y, clientHeight, height, top)];
    return { left: x, top: y, width, height };
  }

  function draw() {
    const isCloser = scale > 1;
    for (const [name, pixels] of Object.entries(place())) {
      for (const one of frame.querySelectorAll("img, svg")) one.style[name] = isCloser ? `${pixels}px` : "";
    }
    frame.classList.toggle("zoomed", isCloser);
    words.hidden = !isCloser;
    const percent = number(Math.round(100 * scale * fit()));
    words.textContent = `${percent} % of ${number(image.naturalWidth)} × ${number(image.naturalHeight)} pixels`;
  }

  // Closer by a factor; what is at a point of the frame stays there.
  function to(wanted, [px, py] = middle()) {
    const next = Math.min(most(), Math.max(1, wanted));
    place();
    [x, y] = [px - ((px - x) * next) / scale, py - ((py - y) * next) / scale];
    isExact = next > 1 && next === exact();
    scale = next;
    draw();
    if (scale > 1) askForAll().catch(() => {}); // where that fails the smaller picture stays
  }

  function move(dx, dy) {
    [x, y] = [x + dx, y + dy];
    draw();
  }

  // All of its pixels, once; until they are there those of the smaller picture are shown larger.
  async function askForAll() {
    if (hasAsked || !whole) return;
    hasAsked = true;
    const found = new Image();
    found.src = whole;
    await found.decode();
    image.src = found.src;
    image.classList.add("original", "whole");
    await image.decode();
    if (scale > 1) to(isExact ? exact() : scale); // pixel by pixel where that was wanted, or as large as it was
  }

  function start() {
    if (scale > 1) return middle();
    const { left, top, width, height } = place();
    return [left + point[0] * width, top + point[1] * height];
  }

  const inFrame = ({ clientX, clientY }) => {
    const { left, top } = frame.getBoundingClientRect();
    return [clientX - left, clientY - top];
  };
  const toggle = (point) => to(scale > 1 ? 1 : exact() > 1 ? exact() : 2, point);
  frame.addEventListener("dblclick", (event) => toggle(inFrame(event)));
  frame.addEventListener("wheel", (event) => {
    event.preventDefault();
    to(scale * STEP ** (-Math.sign(event.deltaY) / 2), inFrame(event));
  }, { passive: false });
  frame.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || scale === 1) return;
    event.preventDefault();
    frame.setPointerCapture(event.pointerId);
    let [fromX, fromY] = inFrame(event);
    const moved = (now) => {
      const [toX, toY] = inFrame(now);
      move(toX - fromX, toY - fromY);
      [fromX, fromY] = [toX, toY];
    };
    const ended = () => frame.removeEventListener("pointermove", moved);
    frame.addEventListener("pointermove", moved);
    for (const end of ["pointerup", "pointercancel"]) frame.addEventListener(end, ended, { once: true });
  });
  image.draggable = false;
  frame.append(words);

  return {
    // Whether a key was about the zoom: plus and minus always, arrows and Escape where it is closer.
    press(key) {
      if (FACTORS[key]) to(scale * FACTORS[key], start());
      else if (scale > 1 && MOVES[key]) move(...MOVES[key].map((side, at) => side * MOVE * 2 * middle()[at]));
      else if (scale > 1 && key === "Escape") to(1);
      else return false;
      return true;
    },
  };
}
