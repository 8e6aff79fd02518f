// The map: images as points. Dragging draws a lasso, whose images are shown in the grid beside the map.
import { getJson } from "/static/api.js";
import { $, bdi, clamped, make, number, notify } from "/static/dom.js";
import { showThumbnail } from "/static/thumbs.js";
import * as data from "/static/store.js";

const MAX_COORDINATE = 65535, MOST_CORNERS = 80;
const GOLDEN_ANGLE = 137.508; // degrees between the hues of two categories: neighbors in the list differ most
const TSNE = "Layout: t-SNE.";
const PCA = "Layout: two principal components, which separate fewer categories.";
const PENDING = `${PCA} t-SNE is being computed …`;

let points = null; // of the layout that is shown
let drawn = []; // corners of a lasso while it is being drawn, on the canvas
let lasso = ""; // the one whose images are in the grid
const view = { scale: 1, x: 0, y: 0 };

// Rows and positions of a layout, "pca" or "tsne", or else of the best one that is known.
async function load(layout = "") {
  const found = await getJson("/api/map", { layout });
  return { ...found, n: found.rows.length };
}

let update = null; // of the map that is shown
// Show the map, or update the one that is shown: `chosen` is a category to highlight, `line` a lasso, `showRows` shows the
// images inside another one.
export async function drawMap({ chosen = null, line = "", showRows }) {
  lasso = line;
  if ($("panel").querySelector("canvas")) return update(chosen);
  const waiting = make("p", { className: "muted", textContent: "Drawing the map …" });
  $("panel").replaceChildren(waiting);
  try {
    points ??= await load();
  } catch (error) {
    waiting.textContent = error.message;
    return;
  }
  if (!waiting.isConnected) return; // something else is shown there by now
  build(showRows);
  update(chosen);
}

function build(showRows) {
  const keys = "Arrow keys move it, plus and minus zoom, Enter shows the visible images in the grid";
  const ariaLabel = `Map of ${points.n} images. ${keys}`;
  const canvas = make("canvas", { tabIndex: 0, ariaLabel, role: "application" });
  const tip = make("div", { id: "tip", hidden: true }, make("img", { alt: "" }), bdi(""));
  const search = make("select", { ariaLabel: "Category to highlight" });
  const option = ({ id, name }) => make("option", { value: String(id), textContent: clamped(name) });
  const fill = (value) => {
    const named = data.living().sort((a, b) => a.name.localeCompare(b.name));
    const options = [{ id: "", name: "highlight a category" }, ...named].map(option);
    const areSame = options.length === search.length && options.every((one, at) => one.isEqualNode(search[at]));
    if (!areSame) search.replaceChildren(...options); // a list that is open would be closed
    search.value = data.isLiving(value) ? String(value) : "";
  };
  const wanted = () => (search.value === "" ? null : Number(search.value));
  const redraw = () => draw(canvas, wanted());
  search.addEventListener("change", redraw);
  const sample = points.n < data.store.n ? `A sample of ${number(points.n)} images. ` : "";
  const mouse = "Draw around images to see them; the wheel zooms, Shift+drag moves.";
  const words = make("p", { className: "muted", textContent: `${sample}${mouse}`, title: keys });
  const shape = (kind) => make("span", { className: `dot ${kind}` });
  const legend = make("span", { className: "legend muted" }, shape("known"), "known", shape("novel"), "novel; a color each");
  const layout = make("span", { className: "muted", id: "layout", role: "status" });
  $("panel").replaceChildren(make("div", { className: "tools" }, search, legend, layout), words, canvas, tip);
  layout.textContent = points.layout === "tsne" ? TSNE : PENDING;
  update = (chosen) => {
    fill(data.current(chosen ?? wanted() ?? data.NONE));
    redraw();
  };
  drawn = [];
  let width = canvas.clientWidth;
  new ResizeObserver(() => {
    if (canvas.clientWidth !== width) Object.assign(view, { scale: 1, x: 0, y: 0 }); // all of it, in its new place
    width = canvas.clientWidth;
    redraw();
  }).observe(canvas);
  useMouse(canvas, tip, redraw, showRows);
  useKeys(canvas, redraw, showRows);
  if (points.layout === "tsne") return;
  load("tsne").then((found) => { // takes seconds
    points = found;
    layout.textContent = points.layout === "tsne" ? TSNE : PCA;
    redraw();
  }, () => (layout.textContent = PCA));
}

function zoom(x, y, factor) {
  const scale = Math.min(40, Math.max(0.5, view.scale * factor));
  view.x = x - ((x - view.x) * scale) / view.scale;
  view.y = y - ((y - view.y) * scale) / view.scale;
  view.scale = scale;
}

// Without a mouse: what is in sight takes the place of what was drawn around.
function useKeys(canvas, redraw, showRows) {
  const moves = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  const zooms = { "+": 1.5, "=": 1.5, "-": 1 / 1.5 };
  canvas.addEventListener("keydown", (event) => {
    const { clientWidth: width, clientHeight: height } = canvas;
    if (moves[event.key]) {
      view.x += (moves[event.key][0] * width) / 8;
      view.y += (moves[event.key][1] * height) / 8;
    } else if (zooms[event.key]) zoom(width / 2, height / 2, zooms[event.key]);
    else if (event.key === "Enter") {
      return show(canvas, [[0, 0], [width, 0], [width, height], [0, height]], redraw, showRows);
    } else return;
    event.preventDefault();
    redraw();
  });
}

// Show the images inside a line in the grid. The line becomes a text for the address: the layout, then its corners in
// units of the map.
async function show(canvas, line, redraw, showRows) {
  const { side, left, top } = frame(canvas), every = Math.ceil(line.length / MOST_CORNERS);
  const corners = line.filter((_, at) => at % every === 0).map(([x, y]) => {
    const across = ((x - view.x) / view.scale - left) / side, down = ((y - view.y) / view.scale - top) / side;
    return `${Math.round(across * MAX_COORDINATE)}.${Math.round(down * MAX_COORDINATE)}`;
  });
  const lasso = [points.layout, ...corners].join("_"), rows = await rowsInside(lasso);
  if (rows.length) return showRows(lasso, rows);
  notify("There is no image inside.");
  redraw();
}

const layoutOf = (lasso) => lasso.split("_", 1)[0];
const cornersOf = (lasso) =>
  lasso.split("_").slice(1, 1 + MOST_CORNERS).map((corner) => corner.split(".").map(Number));

// The images inside of such a line.
export async function rowsInside(lasso) {
  const found = points?.layout === layoutOf(lasso) ? points : await load(layoutOf(lasso));
  const line = cornersOf(lasso), rows = [];
  for (let at = 0; at < found.n; at++) if (isInside([found.x[at], found.y[at]], line)) rows.push(found.rows[at]);
  return rows;
}

function frame(canvas) {
  const side = Math.min(canvas.clientWidth, canvas.clientHeight) - 24;
  return { side, left: (canvas.clientWidth - side) / 2, top: (canvas.clientHeight - side) / 2 };
}

function onCanvas({ side, left, top }, x, y) {
  return [(left + (x / MAX_COORDINATE) * side) * view.scale + view.x, (top + (y / MAX_COORDINATE) * side) * view.scale + view.y];
}

function draw(canvas, chosen) {
  const ratio = devicePixelRatio;
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  const pen = canvas.getContext("2d");
  const place = frame(canvas), { color } = getComputedStyle(canvas);
  const isDark = document.documentElement.dataset.theme === "dark";
  const colorOf = (id) => (id < 0 ? "gray" : `hsl(${(id * GOLDEN_ANGLE) % 360} 75% ${isDark ? 65 : 42}%)`);
  pen.scale(ratio, ratio);
  const radius = Math.max(2.4, place.side / 300);
  for (const isFront of [false, true]) {
    for (let at = 0; at < points.n; at++) {
      const id = data.store.category[points.rows[at]];
      const isChosen = chosen === null || id === chosen;
      if (isChosen !== isFront) continue;
      const [x, y] = onCanvas(place, points.x[at], points.y[at]);
      pen.globalAlpha = isChosen ? 0.8 : 0.15;
      const isNovel = data.store.categories.get(id)?.novel, size = chosen !== null && isChosen ? radius + 1 : radius;
      pen.fillStyle = colorOf(id);
      pen.beginPath();
      if (isNovel) pen.rect(x - size, y - size, 2 * size, 2 * size); // not by its color alone
      else pen.arc(x, y, size, 0, 7);
      pen.fill();
    }
  }
  const isOnMap = !drawn.length && layoutOf(lasso) === points.layout;
  const line = isOnMap ? cornersOf(lasso).map(([x, y]) => onCanvas(place, x, y)) : drawn;
  if (line.length > 1) {
    pen.globalAlpha = 1;
    pen.strokeStyle = color;
    pen.lineWidth = 1.5;
    pen.setLineDash([5, 4]);
    pen.beginPath();
    line.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.closePath();
    pen.stroke();
  }
}

function isInside([x, y], lasso) {
  let inside = false;
  for (let i = 0, j = lasso.length - 1; i < lasso.length; j = i++) {
    const [ax, ay] = lasso[i], [bx, by] = lasso[j];
    if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) inside = !inside;
  }
  return inside;
}

function nearest(canvas, x, y) {
  const place = frame(canvas);
  let best = -1, distance = 64;
  for (let at = 0; at < points.n; at++) {
    const [px, py] = onCanvas(place, points.x[at], points.y[at]);
    const found = (px - x) ** 2 + (py - y) ** 2;
    if (found < distance) [best, distance] = [at, found];
  }
  return best;
}

function useMouse(canvas, tip, redraw, showRows) {
  let moving = null;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.offsetX, event.offsetY, Math.exp(-event.deltaY / 400));
    redraw();
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    tip.hidden = true;
    if (event.shiftKey) moving = [event.offsetX - view.x, event.offsetY - view.y];
    else drawn = [[event.offsetX, event.offsetY]];
  });
  canvas.addEventListener("pointermove", (event) => {
    if (moving) {
      [view.x, view.y] = [event.offsetX - moving[0], event.offsetY - moving[1]];
      redraw();
    } else if (drawn.length) {
      drawn.push([event.offsetX, event.offsetY]);
      redraw();
    } else {
      const at = nearest(canvas, event.offsetX, event.offsetY);
      tip.hidden = at < 0;
      if (at >= 0) {
        const row = points.rows[at];
        showThumbnail(row, tip.querySelector("img"));
        tip.querySelector("bdi").textContent = clamped(data.nameOf(data.store.category[row]));
        tip.style.left = `${Math.min(canvas.clientWidth - 190, event.offsetX + 16)}px`;
        tip.style.top = `${canvas.offsetTop + event.offsetY + 12}px`;
      }
    }
  });
  const ended = () => {
    const line = drawn;
    [drawn, moving] = [[], null];
    redraw();
    return line;
  };
  canvas.addEventListener("pointercancel", ended);
  canvas.addEventListener("pointerup", () => {
    const line = ended();
    if (line.length > 2) show(canvas, line, redraw, showRows);
  });
}
