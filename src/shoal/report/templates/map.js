// The map: one canvas per stage, drawn, zoomed, hovered and selected together.
const SIDE = 9999;
const LIGHT = ["#332288", "#c08a00", "#2f9485", "#cc5a6c", "#117733", "#4a9fd0", "#882255", "#85851f", "#aa4499"];
const DARK = ["#77aadd", "#ee8866", "#eedd88", "#ffaabb", "#99ddff", "#44bb99", "#bbcc33", "#c9c94a", "#dddddd"];
const MAX_NAMES = 60;
const MAX_SELECTED = 400;

const maps = readData("data-maps");
let panels = [];
let highlighted = -1; // a category
let hovered = -1; // a place in images
let selected = new Set();

class Panel {
  constructor(layout) {
    this.layout = layout;
    this.canvas = make("canvas", { tabIndex: 0 });
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", `Map: ${layout.title}. Arrow keys go from image to image, Enter opens it, plus and minus zoom, 0 resets.`);
    this.canvas.setAttribute("aria-describedby", "map-status");
    this.element = make("figure", { className: "panel" }, make("figcaption", { textContent: `${layout.title} (${layout.method})` }), this.canvas);
    this.reset();
    this.lasso = [];
    this.groups = images.categories.map(() => []);
    this.loose = [];
    layout.x.forEach((x, at) => {
      if (x >= 0) (this.groups[images.category[at]] ?? this.loose).push(at);
    });
    this.n = this.loose.length + this.groups.reduce((sum, group) => sum + group.length, 0);
    this.centers = this.groups.map((group) => [median(group.map((at) => layout.x[at])), median(group.map((at) => layout.y[at]))]);
    this.listen();
  }

  reset() {
    this.zoom = 1;
    this.left = 0;
    this.top = 0;
  }

  // From the map's whole numbers to pixels of the canvas, and back.
  get scale() {
    return (Math.min(this.width, this.height) - 36) / SIDE * this.zoom;
  }
  place(at) {
    return this.pixel(this.layout.x[at], this.layout.y[at]);
  }
  pixel(x, y) {
    const half = SIDE / 2;
    return [this.width / 2 + (x - half) * this.scale + this.left, this.height / 2 + (y - half) * this.scale + this.top];
  }

  resize() {
    const box = this.canvas.getBoundingClientRect();
    const ratio = devicePixelRatio || 1;
    this.width = box.width;
    this.height = box.height;
    this.canvas.width = Math.round(box.width * ratio);
    this.canvas.height = Math.round(box.height * ratio);
    this.pen = this.canvas.getContext("2d");
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  draw() {
    if (!this.width) return;
    const { pen } = this;
    const ink = isPrinting ? "#1b2430" : getComputedStyle(this.canvas).color;
    const colors = isDark() ? DARK : LIGHT;
    const size = Math.max(1.6, Math.min(5, 120 / Math.sqrt(this.n))) * Math.min(2, Math.sqrt(this.zoom));
    pen.clearRect(0, 0, this.width, this.height);
    this.drawGroup(this.loose, size, isDark() ? "#888888" : "#999999", ink, true, highlighted >= 0);
    this.groups.forEach((group, category) => {
      const dim = highlighted >= 0 && highlighted !== category;
      this.drawGroup(group, size, colors[category % colors.length], ink, images.categories[category].novel, dim);
    });
    if (highlighted >= 0) this.drawGroup(this.groups[highlighted], size * 1.3, colors[highlighted % colors.length], ink, images.categories[highlighted].novel, false);
    this.drawNames(ink);
    pen.globalAlpha = 0.55;
    pen.strokeStyle = ink;
    pen.lineWidth = 1;
    pen.beginPath();
    for (const at of selected) if (this.layout.x[at] >= 0) this.circle(at, size + 2.5);
    pen.stroke();
    pen.globalAlpha = 1;
    if (hovered >= 0 && this.layout.x[hovered] >= 0) {
      pen.lineWidth = 2.5;
      pen.beginPath();
      this.circle(hovered, size + 5);
      pen.stroke();
    }
    if (this.lasso.length > 1) {
      pen.lineWidth = 1.5;
      pen.setLineDash([5, 4]);
      pen.beginPath();
      for (const [x, y] of this.lasso) pen.lineTo(x, y);
      pen.closePath();
      pen.stroke();
      pen.setLineDash([]);
    }
  }

  drawGroup(group, size, color, ink, isNovel, isDim) {
    const { pen } = this;
    pen.globalAlpha = isDim ? 0.1 : 0.82;
    pen.fillStyle = color;
    pen.beginPath();
    for (const at of group) {
      const [x, y] = this.place(at);
      if (x < -9 || y < -9 || x > this.width + 9 || y > this.height + 9) continue;
      if (isNovel) this.diamond(x, y, size * 1.25);
      else {
        pen.moveTo(x + size, y);
        pen.arc(x, y, size, 0, 7);
      }
    }
    pen.fill();
    if (!isNovel || size < 1.8) return;
    pen.strokeStyle = ink;
    pen.lineWidth = 0.6;
    pen.stroke();
  }

  diamond(x, y, size) {
    this.pen.moveTo(x, y - size);
    this.pen.lineTo(x + size, y);
    this.pen.lineTo(x, y + size);
    this.pen.lineTo(x - size, y);
    this.pen.closePath();
  }

  circle(at, size) {
    const [x, y] = this.place(at);
    this.pen.moveTo(x + size, y);
    this.pen.arc(x, y, size, 0, 7);
  }

  drawNames(ink) {
    const { pen } = this;
    const paper = isPrinting ? "#ffffff" : getComputedStyle(this.element).backgroundColor;
    pen.font = `600 12px ${getComputedStyle(document.body).fontFamily}`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.lineJoin = "round";
    const named = highlighted >= 0 ? [highlighted] : images.categories.length <= MAX_NAMES || this.zoom > 2 ? images.categories.keys() : [];
    const taken = [];
    for (const category of [...named].sort((a, b) => this.groups[b].length - this.groups[a].length)) {
      if (!this.groups[category].length) continue;
      const [x, y] = this.pixel(...this.centers[category]);
      const { name, novel } = images.categories[category];
      const text = `${kindMark(novel)} ${name.length > 22 ? `${name.slice(0, 21)}…` : name}`;
      const half = pen.measureText(text).width / 2 + 3;
      if (taken.some(([tx, ty, other]) => Math.abs(tx - x) < other + half && Math.abs(ty - y) < 15)) continue; // zoom in to read it
      taken.push([x, y, half]);
      pen.globalAlpha = 0.85;
      pen.strokeStyle = paper;
      pen.lineWidth = 4;
      pen.strokeText(text, x, y);
      pen.globalAlpha = 1;
      pen.fillStyle = ink;
      pen.fillText(text, x, y);
    }
  }

  nearest(x, y, reach = 14) {
    let best = -1;
    let least = reach * reach;
    const groups = highlighted >= 0 ? [this.groups[highlighted]] : [...this.groups, this.loose];
    for (const group of groups)
      for (const at of group) {
        const [px, py] = this.place(at);
        const distance = (px - x) ** 2 + (py - y) ** 2;
        if (distance < least) [best, least] = [at, distance];
      }
    return best;
  }

  // The nearest image in the direction of an arrow key: straight ahead counts more than near.
  step(dx, dy) {
    if (hovered < 0 || this.layout.x[hovered] < 0) return this.nearest(this.width / 2, this.height / 2, Infinity);
    const [x, y] = this.place(hovered);
    let best = hovered;
    let least = Infinity;
    for (const group of [...this.groups, this.loose])
      for (const at of group) {
        const [px, py] = this.place(at);
        const ahead = (px - x) * dx + (py - y) * dy;
        const aside = Math.abs((px - x) * dy + (py - y) * dx);
        const cost = ahead + 2.5 * aside;
        if (at !== hovered && ahead > 1 && cost < least) [best, least] = [at, cost];
      }
    return best;
  }

  zoomBy(factor, x = this.width / 2, y = this.height / 2) {
    const zoom = Math.max(1, Math.min(40, this.zoom * factor));
    const grown = zoom / this.zoom;
    this.left = (this.left - x + this.width / 2) * grown + x - this.width / 2;
    this.top = (this.top - y + this.height / 2) * grown + y - this.height / 2;
    this.zoom = zoom;
    if (zoom === 1) this.reset();
    redraw();
  }

  listen() {
    const { canvas } = this;
    let from = null;
    let moved = false;
    canvas.addEventListener("pointerdown", (event) => {
      from = [event.offsetX, event.offsetY];
      moved = false;
      if (event.shiftKey || isSelecting()) this.lasso = [from];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const here = [event.offsetX, event.offsetY];
      if (!from) return hover(this, this.nearest(...here), event.clientX, event.clientY);
      moved ||= Math.hypot(here[0] - from[0], here[1] - from[1]) > 4;
      if (!moved) return;
      if (this.lasso.length) this.lasso.push(here);
      else {
        this.left += event.movementX;
        this.top += event.movementY;
      }
      hideTip();
      redraw();
    });
    canvas.addEventListener("pointerup", (event) => {
      const drawn = this.lasso;
      this.lasso = [];
      from = null;
      if (moved && drawn.length > 2) select(this.inside(drawn));
      else if (!moved) {
        const at = this.nearest(event.offsetX, event.offsetY, event.pointerType === "touch" ? 24 : 14);
        if (at >= 0) view([images.row[at]], 0);
      }
      redraw();
    });
    canvas.addEventListener("pointercancel", () => {
      from = null;
      this.lasso = [];
      redraw();
    });
    canvas.addEventListener("pointerleave", () => !from && hover(this, -1));
    canvas.addEventListener("blur", () => hover(this, -1));
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (document.activeElement !== canvas && !event.ctrlKey && !event.metaKey) return; // let the page scroll
        event.preventDefault();
        this.zoomBy(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (steps[event.key]) this.goTo(this.step(...steps[event.key]));
    else if (event.key === "Enter" && hovered >= 0) view([images.row[hovered]], 0);
    else if (event.key === "+" || event.key === "=") this.zoomBy(1.4);
    else if (event.key === "-") this.zoomBy(1 / 1.4);
    else if (event.key === "0") resetMaps();
    else if (event.key === "Escape") select([]);
    else return;
    event.preventDefault();
  }

  goTo(at) {
    if (at < 0) return;
    let [x, y] = this.place(at);
    if (x < 20 || y < 20 || x > this.width - 20 || y > this.height - 20) {
      this.left += this.width / 2 - x;
      this.top += this.height / 2 - y;
      [x, y] = this.place(at);
    }
    const box = this.canvas.getBoundingClientRect();
    hover(this, at, box.left + x, box.top + y);
    const found = image(images.row[at]);
    $("map-status").textContent = `${found.path}: ${found.category}, ${kindWord(found.isNovel)}, confidence ${digits(found.confidence)}.`;
  }

  inside(outline) {
    const shape = new Path2D();
    for (const [x, y] of outline) shape.lineTo(x, y);
    shape.closePath();
    const ratio = devicePixelRatio || 1; // isPointInPath ignores the transform of the point, not of the path
    return [...this.groups, this.loose].flat().filter((at) => {
      const [x, y] = this.place(at);
      return this.pen.isPointInPath(shape, x * ratio, y * ratio);
    });
  }
}

function median(values) {
  return values.sort((a, b) => a - b)[values.length >> 1] ?? 0;
}

let isWaiting = false;
function redraw() {
  if (isWaiting) return;
  isWaiting = true;
  requestAnimationFrame(() => {
    isWaiting = false;
    for (const panel of panels) panel.draw();
  });
}

function hideTip() {
  $("tip").hidden = true;
}

function hover(panel, at, x, y) {
  if (at !== hovered) {
    hovered = at;
    redraw();
  }
  panel.canvas.style.cursor = at >= 0 ? "pointer" : "";
  if (at < 0) return hideTip();
  const found = image(images.row[at]);
  const source = thumbnail(found.row);
  $("tip-image").replaceChildren(...(source ? [make("img", { src: source, alt: "" })] : []));
  $("tip-words").textContent = `${found.category} (${kindMark(found.isNovel)} ${kindWord(found.isNovel)})\nconfidence ${digits(found.confidence)}${source ? "" : "\nno thumbnail on the page"}`;
  const tip = $("tip");
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 16, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 20 + box.height > innerHeight ? y - box.height - 14 : y + 20}px`;
}

const isSelecting = () => $("map-select").getAttribute("aria-pressed") === "true";

function select(places) {
  selected = new Set(places);
  $("selection").hidden = !places.length;
  const counts = new Map();
  for (const at of places) {
    const { category } = image(images.row[at]);
    counts.set(category, (counts.get(category) ?? 0) + 1);
  }
  const named = [...counts].sort((a, b) => b[1] - a[1]).map(([name, n]) => `${n} ${name}`);
  const rest = named.length > 8 ? `, and ${named.length - 8} more categories` : "";
  const cut = places.length > MAX_SELECTED ? ` The first ${MAX_SELECTED} are shown.` : "";
  $("selection-title").textContent = `${places.length} ${places.length === 1 ? "image" : "images"} selected`;
  $("selection-note").textContent = `${named.slice(0, 8).join(", ")}${rest}.${cut}`;
  $("selection-images").replaceChildren(...places.slice(0, MAX_SELECTED).map((at) => tileOf(images.row[at])));
  $("map-status").textContent = places.length ? `${places.length} images selected; they are listed below.` : "Nothing is selected.";
  redraw();
}

function highlight(category) {
  highlighted = category;
  $("map-category").value = String(category);
  redraw();
}

function resetMaps() {
  for (const panel of panels) panel.reset();
  redraw();
}

function showMaps() {
  const method = $("map-method").value;
  panels = maps.filter((layout) => layout.method === method).map((layout) => new Panel(layout));
  $("panels").replaceChildren(...panels.map((panel) => panel.element));
  const fit = () => {
    for (const panel of panels) panel.resize();
    redraw();
  };
  new ResizeObserver(fit).observe($("panels"));
  fit();
}

if (maps.length) {
  showMaps();
  $("map-method").addEventListener("change", showMaps);
  $("map-category").addEventListener("change", (event) => highlight(Number(event.target.value)));
  $("map-in").addEventListener("click", () => panels.forEach((panel) => panel.zoomBy(1.5)));
  $("map-out").addEventListener("click", () => panels.forEach((panel) => panel.zoomBy(1 / 1.5)));
  $("map-reset").addEventListener("click", resetMaps);
  $("map-select").addEventListener("click", () => {
    const isOn = !isSelecting();
    $("map-select").setAttribute("aria-pressed", String(isOn));
    for (const panel of panels) panel.canvas.classList.toggle("lasso", isOn);
    $("map-status").textContent = isOn ? "Draw around the images to select." : "Drag to move, Shift-drag to select.";
  });
  $("selection-clear").addEventListener("click", () => select([]));
  for (const button of document.querySelectorAll(".to-map"))
    button.addEventListener("click", () => {
      highlight(images.categories.findIndex((category) => category.name === button.dataset.name));
      $("map").scrollIntoView();
      panels[0].canvas.focus({ preventScroll: true });
    });
  onTheme.push(redraw);
  for (const [moment, is] of [["beforeprint", true], ["afterprint", false]])
    addEventListener(moment, () => {
      isPrinting = is;
      for (const panel of panels) panel.draw();
    });
}
showTheme();
