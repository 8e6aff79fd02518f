// The map: a sample of the images as points. Dragging draws a lasso, whose images are shown in the grid.
import { getBytes } from "/static/api.js";
import { $, bdi, make, number, say } from "/static/dom.js";
import { showThumbnail } from "/static/thumbs.js";
import * as data from "/static/store.js";

const WHOLE = 65535, MOST_CORNERS = 80;
const HOW = "Placed by t-SNE, where `shoal report --tsne` has drawn it for this run, or else by two principal "
  + "components, which tell fewer categories apart: run that command, then `shoal review` again.";
let points = null;
let drawn = []; // of a lasso so far
let refresh = null;
const view = { scale: 1, x: 0, y: 0 };

async function loadPoints() {
  if (points) return points;
  const bytes = await getBytes("/api/map");
  const n = new DataView(bytes).getUint32(0, true);
  const rows = new Uint32Array(bytes, 4, n), at = 4 + 4 * n;
  points = { n, rows, x: new Uint16Array(bytes, at, n), y: new Uint16Array(bytes, at + 2 * n, n) };
  return points;
}

// Categories have changed: colors and names.
export const refreshMap = () => $("panel").querySelector("canvas") && refresh?.();

export async function drawMap(chosen, showRows) {
  const place = $("panel");
  const waiting = make("p", { className: "muted", textContent: "Drawing the map …" });
  place.replaceChildren(waiting);
  try {
    await loadPoints();
  } catch (error) {
    waiting.textContent = error.message;
    return;
  }
  if (!waiting.isConnected) return; // something else is shown there by now
  const keys = "Arrow keys move it, plus and minus zoom, Enter shows the images in sight in the grid";
  const ariaLabel = `Map of ${points.n} images. ${keys}`;
  const canvas = make("canvas", { tabIndex: 0, ariaLabel, role: "application" });
  const tip = make("div", { id: "tip", hidden: true }, make("img", { alt: "" }), bdi(""));
  const what = points.n < data.store.n ? `A sample of ${number(points.n)} images. ` : "";
  const option = ({ id, name }) => make("option", { value: String(id), textContent: name });
  const search = make("select", { ariaLabel: "Category to point out" });
  const fill = (value) => {
    const named = data.living().sort((a, b) => a.name.localeCompare(b.name));
    const options = [{ id: "", name: "point out a category" }, ...named].map(option);
    const areSame = options.length === search.length && options.every((one, at) => one.isEqualNode(search[at]));
    if (!areSame) search.replaceChildren(...options); // a list that is open would be closed
    search.value = data.isLiving(value) ? String(value) : "";
  };
  const wanted = () => (search.value === "" ? null : Number(search.value));
  const redraw = () => draw(canvas, wanted());
  search.addEventListener("change", redraw);
  fill(chosen);
  const mouse = "Draw around images to see them; the wheel zooms, Shift+drag moves.";
  const textContent = `${what}${mouse} By keys: arrows, + and −, Enter for what is in sight.`;
  const dot = (kind) => make("span", { className: `dot ${kind}` });
  const legend = make("span", { className: "legend muted" }, dot("known"), "known", dot("novel"), "novel");
  const words = make("span", { className: "muted", textContent });
  const how = make("p", { className: "muted how", textContent: HOW });
  place.replaceChildren(make("div", { className: "tools" }, search, legend, words), how, canvas, tip);
  refresh = () => {
    fill(data.today(wanted() ?? data.NONE));
    redraw();
  };
  drawn = [];
  new ResizeObserver(redraw).observe(canvas);
  useMouse(canvas, tip, redraw, showRows);
  useKeys(canvas, redraw, showRows);
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

// The images inside of a line, in the grid. The line is kept in places of the map, as a text for the address.
async function show(canvas, line, redraw, showRows) {
  const { side, left, top } = frame(canvas), every = Math.ceil(line.length / MOST_CORNERS);
  const corners = line.filter((_, at) => at % every === 0).map(([x, y]) => {
    const across = ((x - view.x) / view.scale - left) / side, down = ((y - view.y) / view.scale - top) / side;
    return `${Math.round(across * WHOLE)}.${Math.round(down * WHOLE)}`;
  });
  const lasso = corners.join("_"), rows = await rowsInside(lasso);
  if (rows.length) return showRows(lasso, rows);
  say("No image lies inside of that.");
  redraw();
}

// The images inside of such a line.
export async function rowsInside(lasso) {
  await loadPoints();
  const line = lasso.split("_").slice(0, MOST_CORNERS).map((corner) => corner.split(".").map(Number)), rows = [];
  for (let at = 0; at < points.n; at++) if (isInside([points.x[at], points.y[at]], line)) rows.push(points.rows[at]);
  return rows;
}

function frame(canvas) {
  const side = Math.min(canvas.clientWidth, canvas.clientHeight) - 24;
  return { side, left: (canvas.clientWidth - side) / 2, top: (canvas.clientHeight - side) / 2 };
}

function placed(canvas, at) {
  const { side, left, top } = frame(canvas);
  return [
    (left + (points.x[at] / WHOLE) * side) * view.scale + view.x,
    (top + (points.y[at] / WHOLE) * side) * view.scale + view.y,
  ];
}

function draw(canvas, chosen) {
  const ratio = devicePixelRatio;
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  const pen = canvas.getContext("2d");
  const probe = make("span");
  document.body.append(probe);
  const color = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const colors = { known: color("known"), novel: color("novel"), muted: color("muted"), ink: color("ink") };
  probe.remove();
  pen.scale(ratio, ratio);
  const radius = points.n > 5000 ? 1.6 : 2.6;
  for (const isFront of [false, true]) {
    for (let at = 0; at < points.n; at++) {
      const id = data.store.category[points.rows[at]];
      const isChosen = chosen === null || id === chosen;
      if (isChosen !== isFront) continue;
      const [x, y] = placed(canvas, at);
      pen.globalAlpha = isChosen ? 0.75 : 0.18;
      const isNovel = data.store.categories.get(id)?.novel, size = chosen !== null && isChosen ? radius + 1 : radius;
      pen.fillStyle = id < 0 ? colors.muted : isNovel ? colors.novel : colors.known;
      pen.beginPath();
      if (isNovel) pen.rect(x - size, y - size, 2 * size, 2 * size); // not by its color alone
      else pen.arc(x, y, size, 0, 7);
      pen.fill();
    }
  }
  if (drawn.length > 1) {
    pen.globalAlpha = 1;
    pen.strokeStyle = colors.ink;
    pen.lineWidth = 1.5;
    pen.setLineDash([5, 4]);
    pen.beginPath();
    drawn.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
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
  let best = -1, distance = 64;
  for (let at = 0; at < points.n; at++) {
    const [px, py] = placed(canvas, at);
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
        tip.querySelector("bdi").textContent = data.nameOf(data.store.category[row]);
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
