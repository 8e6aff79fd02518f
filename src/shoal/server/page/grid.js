// The grid: only tiles on the screen exist. Focus and selection are by place and row, so a million images cost nothing.
import { bdi } from "/static/dom.js";
import { isLarge, prefetch, sharpen, showThumbnail } from "/static/thumbs.js";

const GAP = 6, AROUND = 3, IDLE_MS = 180, MAX_HEIGHT = 30e6, DRAG = 5, SCREENS_AHEAD = 4;

// Those of some rows that are among others. A Set of these would take longer than all the rest of an action.
export function remaining(some, rows) {
  const isHere = new Uint8Array(rows.reduce((most, row) => Math.max(most, row), -1) + 1);
  for (const row of rows) isHere[row] = 1;
  const found = new Set();
  for (const row of some) if (isHere[row]) found.add(row);
  return found;
}

function followPointer(moved, ended) {
  const end = (event) => {
    window.removeEventListener("pointermove", moved);
    for (const name of ["pointerup", "pointercancel"]) window.removeEventListener(name, end);
    ended(event);
  };
  window.addEventListener("pointermove", moved);
  for (const name of ["pointerup", "pointercancel"]) window.addEventListener(name, end);
}

export class Grid {
  constructor(element, space, box, hooks) {
    Object.assign(this, { element, space, box, hooks, rows: new Uint32Array(0), focus: 0, anchor: 0, before: null });
    Object.assign(this, { size: 112, side: 112, columns: 1, drawn: 0, covered: 0, canBeSharp: false });
    Object.assign(this, { selected: new Set(), tiles: new Map(), spare: new Map(), pool: [] });
    element.addEventListener("scroll", () => this.plan(), { passive: true });
    new ResizeObserver(() => this.layout()).observe(element);
    element.addEventListener("pointerdown", (event) => this.press(event));
    element.addEventListener("dblclick", (event) => {
      const row = this.under(event);
      if (row >= 0 && row === this.clicked) hooks.open(event, row);
    });
  }

  // Pixels from one tile to the next: tiles are stretched until a line of them is full.
  get step() {
    return this.side + GAP;
  }

  get focused() {
    return this.rows.length ? this.rows[this.focus] : -1;
  }

  // Show other rows; the same view keeps the image in focus, or its place, and what of the selection is still there.
  show(rows, { isSame = false } = {}) {
    const there = isSame && this.focused >= 0 && rows !== this.rows ? rows.indexOf(this.focused) : -1;
    const previous = isSame ? this.selected : new Set();
    this.rows = rows;
    this.selected = previous.size ? remaining(previous, rows) : new Set();
    this.focus = there >= 0 ? there : isSame ? Math.min(this.focus, Math.max(0, rows.length - 1)) : 0;
    this.anchor = this.focus;
    if (!isSame) this.element.scrollTop = 0;
    this.spare = new Map([...this.tiles.values()].map((tile) => [tile.row, tile]));
    this.tiles.clear();
    this.layout();
    for (const tile of this.spare.values()) this.release(tile);
    this.spare.clear();
    this.selectionChanged();
    this.hooks.focus(this.focused);
  }

  drop() {
    for (const tile of this.tiles.values()) this.release(tile);
    this.tiles.clear();
  }

  resize(size) {
    const place = this.focus;
    this.size = size;
    this.drop();
    this.layout();
    this.reveal(place);
  }

  layout() {
    const width = this.element.clientWidth - 2 * GAP;
    const columns = Math.max(1, Math.floor((width + GAP) / (this.size + GAP)));
    const side = Math.max(16, Math.floor((width + GAP) / columns) - GAP);
    if (columns !== this.columns || side !== this.side) this.drop();
    Object.assign(this, { columns, side });
    const lines = Math.ceil(this.rows.length / columns);
    this.reachable = Math.floor(MAX_HEIGHT / this.step) * columns; // a browser scrolls no further
    this.space.style.height = `${Math.min(MAX_HEIGHT, lines * this.step + GAP + this.covered)}px`;
    this.draw();
  }

  // So many pixels at the bottom lie behind something: lines can be scrolled out from there.
  cover(height) {
    this.covered = height;
    this.layout();
  }

  plan() {
    if (this.planned) return;
    this.planned = true;
    requestAnimationFrame(() => {
      this.planned = false;
      this.draw();
    });
  }

  draw() {
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, Math.floor(scrollTop / this.step) - AROUND) * this.columns;
    const end = (Math.ceil((scrollTop + clientHeight) / this.step) + AROUND) * this.columns;
    const last = Math.min(this.rows.length, end);
    for (const [place, tile] of this.tiles) {
      if (place < first || place >= last) {
        this.release(tile);
        this.tiles.delete(place);
      }
    }
    this.prefetch(first, last);
    for (let place = first; place < last; place++) {
      if (!this.tiles.has(place)) this.tiles.set(place, this.fill(place));
    }
    const tile = this.tiles.get(this.focus);
    if (tile) this.element.setAttribute("aria-activedescendant", tile.element.id);
    else this.element.removeAttribute("aria-activedescendant");
    clearTimeout(this.idle);
    this.idle = setTimeout(() => this.rest(), IDLE_MS);
  }

  // While scrolling, load the pictures of the next screens in that direction: those that are passed come too late.
  prefetch(first, last) {
    const { scrollTop } = this.element, distance = scrollTop - (this.lastTop ?? scrollTop);
    this.lastTop = scrollTop;
    if (!distance) return;
    const n = SCREENS_AHEAD * (last - first);
    prefetch(distance > 0 ? this.rows.subarray(last, last + n) : this.rows.slice(Math.max(0, first - n), first).reverse());
  }

  // The tiles that can be seen.
  inSight() {
    const { scrollTop, clientHeight } = this.element;
    return [...this.tiles.values()].filter((tile) => {
      const top = Math.floor(tile.place / this.columns) * this.step;
      return top + this.side >= scrollTop && top <= scrollTop + clientHeight;
    });
  }

  // Since when the pictures of some images are there, of those that can be seen.
  shownSince(isAbout = () => true) {
    const times = this.inSight().map((tile) => (isAbout(tile.row) ? tile.since : -Infinity));
    return Math.max(-Infinity, ...times);
  }

  // While not scrolling: load sharper pictures, and text for screen readers.
  rest() {
    const seen = this.inSight();
    if (this.canBeSharp && isLarge(this.side)) {
      for (const tile of seen.reverse()) {
        const { row } = tile, { side } = this;
        sharpen(row, tile.image, side, () => tile.row === row && this.side === side);
      }
    }
    this.hooks.rest(seen.map((tile) => tile.row), (row, words) => {
      for (const tile of this.tiles.values()) {
        if (tile.row === row) {
          tile.element.setAttribute("aria-label", words);
          tile.element.title = words;
        }
      }
    });
  }

  release(tile) {
    tile.row = -1;
    tile.place = -1;
    tile.image.removeAttribute("src");
    tile.element.hidden = true;
    this.pool.push(tile);
  }

  make() {
    const element = document.createElement("div");
    element.className = "tile";
    element.setAttribute("role", "option");
    const image = document.createElement("img");
    image.alt = "";
    image.decoding = "async";
    image.draggable = false;
    const mark = document.createElement("span");
    mark.className = "mark";
    const caption = document.createElement("span");
    caption.className = "caption";
    for (const part of [mark, caption]) part.setAttribute("aria-hidden", "true"); // the label says it
    element.append(image, mark, caption);
    this.space.append(element);
    return { element, image, mark, caption, lines: "", row: -1, place: -1, since: Infinity };
  }

  // The tile of a place: one that shows this image already, or another that is free.
  fill(place) {
    const row = this.rows[place];
    const there = this.spare.get(row);
    this.spare.delete(row);
    const tile = there ?? this.pool.pop() ?? this.make();
    Object.assign(tile, { row, place });
    this.put(tile);
    if (!there) this.load(tile);
    this.mark(tile);
    return tile;
  }

  put(tile) {
    const { element, place } = tile;
    const x = GAP + (place % this.columns) * this.step, y = GAP + Math.floor(place / this.columns) * this.step;
    element.style.transform = `translate(${x}px, ${y}px)`;
    if (tile.side !== this.side) element.style.width = element.style.height = `${(tile.side = this.side)}px`;
    element.setAttribute("aria-posinset", place + 1);
    element.setAttribute("aria-setsize", this.rows.length);
  }

  load(tile) {
    const { element, image, row, place } = tile;
    element.id = `tile-${row}`;
    element.dataset.row = row;
    element.setAttribute("aria-label", `image ${place + 1}`);
    element.title = "";
    element.hidden = false;
    this.drawn++;
    this.watch(tile, row);
  }

  // Show the picture of a tile, and know since when it is there.
  async watch(tile, row) {
    const turn = (tile.turn = {}), isWanted = () => tile.row === row && tile.turn === turn;
    tile.since = Infinity;
    await showThumbnail(row, tile.image, { size: this.side, canBeSharp: this.canBeSharp, isWanted });
    requestAnimationFrame(() => isWanted() && (tile.since = performance.now()));
  }

  // What a tile says of its image; written only where it is something else than before.
  mark(tile) {
    const { word, mark, isOff, lines } = this.hooks.status(tile.row);
    const name = `tile${tile.place === this.focus ? " focus" : ""}${isOff ? " off" : ""}`;
    const isSelected = this.selected.has(tile.row);
    if (tile.name !== name) tile.element.className = tile.name = name;
    if (tile.isSelected !== isSelected) tile.element.setAttribute("aria-selected", (tile.isSelected = isSelected));
    if (tile.word !== word) {
      tile.element.dataset.status = tile.word = word;
      tile.mark.textContent = mark;
    }
    if (tile.lines !== lines.join("\n")) {
      tile.lines = lines.join("\n");
      tile.caption.replaceChildren(...lines.map((line) => bdi(line)));
    }
  }

  markAll() {
    for (const tile of this.tiles.values()) this.mark(tile);
  }

  reveal(place) {
    const top = Math.floor(place / this.columns) * this.step;
    const { scrollTop } = this.element, height = this.element.clientHeight - this.covered;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.step + GAP > scrollTop + height) this.element.scrollTop = top + this.step + GAP - height;
    this.draw();
  }

  go(place, { extend = false } = {}) {
    if (!this.rows.length) return;
    this.focus = Math.max(0, Math.min(this.rows.length - 1, place));
    if (extend) this.range(this.anchor, this.focus);
    else Object.assign(this, { anchor: this.focus, before: null });
    this.reveal(this.focus);
    this.markAll();
    this.hooks.focus(this.focused);
  }

  move(key, options) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.step)) * this.columns;
    const line = this.columns;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -line, ArrowDown: line, PageUp: -page, PageDown: page };
    const ends = { Home: 0, End: this.rows.length - 1 };
    if (key in steps) this.go(this.focus + steps[key], options);
    else this.go(ends[key], options);
  }

  select(rows, { adds = false } = {}) {
    if (!adds) this.selected.clear();
    for (const row of rows) this.selected.add(row);
    this.selectionChanged();
  }

  // Select from one place to another, besides what was selected before the last one was chosen.
  range(from, to) {
    const [low, high] = from < to ? [from, to] : [to, from], before = this.before ?? new Set(this.selected);
    this.select([...before, ...this.rows.subarray(low, high + 1)]);
    this.before = before;
  }

  // The selected rows; the same list until others are selected.
  get chosen() {
    return (this.list ??= [...this.selected]);
  }

  // Take some rows out of the selection; returns those that were in it.
  unselect(rows) {
    const isList = rows === this.list; // looking up 100,000 takes long
    const taken = isList ? rows : rows.filter((row) => this.selected.has(row));
    if (taken.length === this.selected.size) this.selected.clear();
    else for (const row of taken) this.selected.delete(row);
    if (taken.length) this.selectionChanged();
    return taken;
  }

  toggle(row) {
    if (!this.selected.delete(row)) this.selected.add(row);
    this.selectionChanged();
  }

  // Others are selected than before.
  selectionChanged() {
    this.list = this.before = null;
    this.markAll();
    this.hooks.select(this.selected.size);
  }

  // The image under the pointer, or -1.
  under(event) {
    const tile = event.target.closest?.(".tile");
    return tile ? Number(tile.dataset.row) : -1;
  }

  press(event) {
    if (event.button !== 0 || event.pointerType === "touch" && this.under(event) < 0) return;
    const start = this.inside(event), row = (this.clicked = this.under(event)), adds = event.ctrlKey || event.metaKey;
    if (row >= 0 && this.selected.has(row) && event.pointerType !== "touch") return this.drag(event, row);
    const before = new Set(adds || event.shiftKey ? this.selected : []);
    let isBox = false;
    const moved = (now) => {
      const end = this.inside(now);
      if (event.pointerType === "touch") return;
      if (!isBox && Math.hypot(end.x - start.x, end.y - start.y) > DRAG) {
        isBox = true;
        this.hooks.box();
      }
      if (isBox) this.selectBox(start, end, before, now);
    };
    followPointer(moved, (now) => {
      this.box.hidden = true;
      if (now.type === "pointercancel" || isBox || row < 0) return;
      this.hooks.click(now, () => this.click(row, event.shiftKey));
    });
  }

  // Drag the selected images to a category; without a move it is a click.
  drag(event, row) {
    let isDrag = false;
    const moved = (now) => {
      isDrag ||= Math.hypot(now.clientX - event.clientX, now.clientY - event.clientY) > DRAG;
      if (isDrag) this.hooks.drag(now);
    };
    followPointer(moved, (now) => {
      this.hooks.drag(null);
      if (now.type === "pointercancel") return;
      if (isDrag) this.hooks.drop(now);
      else this.hooks.click(now, () => this.click(row, event.shiftKey));
    });
  }

  // A click on an image, which may be at another place than it was, or gone.
  click(row, extends_) {
    const place = this.rows.indexOf(row);
    if (place < 0) return;
    this.focus = place;
    if (extends_) this.range(this.anchor, place);
    else {
      this.anchor = place;
      this.toggle(row);
    }
    this.markAll();
    this.hooks.focus(this.focused);
  }

  inside(event) {
    const { left, top } = this.element.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top + this.element.scrollTop };
  }

  selectBox(start, end, before, event) {
    const [left, right] = [Math.min(start.x, end.x), Math.max(start.x, end.x)];
    const [top, bottom] = [Math.min(start.y, end.y), Math.max(start.y, end.y)];
    const place = { left, top, width: right - left, height: bottom - top };
    for (const [name, pixels] of Object.entries(place)) this.box.style[name] = `${pixels}px`;
    this.box.hidden = false;
    const line = (value) => Math.floor((value - GAP) / this.step);
    const rows = [...before];
    for (let y = Math.max(0, line(top)); y <= line(bottom); y++) {
      for (let x = Math.max(0, line(left)); x <= Math.min(this.columns - 1, line(right)); x++) {
        const place = y * this.columns + x;
        if (place < this.rows.length) rows.push(this.rows[place]);
      }
    }
    this.select(rows);
    const { top: edge, bottom: end_ } = this.element.getBoundingClientRect();
    if (event.clientY > end_ - 24) this.element.scrollTop += 18;
    if (event.clientY < edge + 24) this.element.scrollTop -= 18;
  }
}
