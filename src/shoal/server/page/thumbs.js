// Thumbnails, many to a request. Only those still wanted are asked for; sharper ones follow where tiles are large.
import { getBytes, toBase64 } from "/static/api.js";
import { store } from "/static/store.js";

const AT_ONCE = 64, SHARP_AT_ONCE = 6, IN_FLIGHT = 3, KEPT = 20000, SHARP_KEPT = 1500;
const PAUSE_MS = 40; // between two requests, so that a scrolling grid asks for some lines at once and not for each
const AGAIN_MS = 5000; // after which a picture that could not be had is asked for again
const LARGE = 88; // pixels on the screen beyond which a thumbnail of 64 looks soft
const SIDES = [224, 320, 448, 640]; // the longer side of sharper pictures: few, so that one is kept for many tiles
const LONGER = 4 / 3; // by which the longer side of most photos is, of which a tile shows the middle

class Loader {
  constructor(atOnce, inFlight, most, more) {
    Object.assign(this, { atOnce, inFlight, most, more, cache: new Map(), wanted: new Map(), coming: new Map() });
    Object.assign(this, { ahead: [], running: 0, planned: false, asked: -PAUSE_MS });
  }

  // Show a picture in an <img>; `done` receives whether there is one, unless it is no longer needed by then.
  show(row, isWanted, done) {
    const url = this.cache.get(row);
    if (url !== undefined) {
      this.cache.delete(row);
      this.cache.set(row, url);
      done(url);
      return;
    }
    const found = this.coming.get(row) ?? this.wanted.get(row);
    if (found) found.push([isWanted, done]);
    else this.wanted.set(row, [[isWanted, done]]);
    this.plan();
  }

  plan() {
    if (this.planned) return;
    this.planned = true;
    const pause = this.asked + PAUSE_MS - performance.now();
    setTimeout(() => {
      this.planned = false;
      this.next();
    }, pause > 0 ? pause : 0);
  }

  next() {
    while (this.running < this.inFlight) {
      const batch = [], add = (row, places) => {
        this.coming.set(row, places);
        batch.push([row, places]);
      };
      for (const [row, places] of [...this.wanted].reverse()) { // the latest first
        const still = places.filter(([isWanted]) => isWanted());
        this.wanted.delete(row);
        if (still.length) add(row, still);
        if (batch.length === this.atOnce) break;
      }
      for (const row of this.ahead) {
        if (batch.length === this.atOnce) break;
        if (!this.cache.has(row) && !this.coming.has(row)) add(row, []);
      }
      if (!batch.length) return;
      this.asked = performance.now();
      this.fetch(batch);
    }
  }

  async fetch(batch) {
    this.running++;
    try {
      const rows = batch.map(([row]) => row).join(",");
      const bytes = await getBytes("/thumbnails", { rows, v: store.run.version, ...this.more });
      const sizes = new DataView(bytes);
      let at = 4 * (1 + batch.length);
      batch.forEach(([row, places], i) => {
        const size = sizes.getUint32(4 * (i + 1), true);
        const url = size ? dataUrl(new Uint8Array(bytes, at, size)) : "";
        at += size;
        this.keep(row, url);
        for (const [isWanted, done] of places) if (isWanted()) done(url);
      });
    } catch { // the server is unreachable: the next scroll requests them again
      this.ahead = [];
      for (const [, places] of batch) for (const [isWanted, done] of places) if (isWanted()) done("");
    } finally {
      for (const [row] of batch) this.coming.delete(row);
      this.running--;
      this.plan();
    }
  }

  keep(row, url) {
    this.cache.set(row, url);
    if (!url) setTimeout(() => this.cache.get(row) === "" && this.cache.delete(row), AGAIN_MS);
    if (this.cache.size <= this.most) return;
    this.cache.delete(this.cache.keys().next().value);
  }
}

// A picture as an address of its own: unlike a blob's, it is made without asking the browser's other processes.
const dataUrl = (bytes) => `data:image/webp;base64,${toBase64(bytes)}`;

const small = new Loader(AT_ONCE, IN_FLIGHT, KEPT, {});
const sharp = new Map(SIDES.map((side) => { // as many pixels of each side are cache
  const most = Math.round(SHARP_KEPT * (SIDES[0] / side) ** 2);
  return [side, new Loader(SHARP_AT_ONCE, 1, most, { sharp: side })];
}));
const sideOf = (size) => SIDES.find((side) => side >= size * devicePixelRatio * LONGER) ?? SIDES.at(-1);
const sharpest = (row) => SIDES.map((side) => sharp.get(side).cache.get(row)).findLast(Boolean);

function place(image, url) {
  image.src = url;
  image.classList.add("there");
}

// Show a picture in an <img>; whatever it showed before is forgotten. Resolves when it is there, or when there is none.
const coming = new WeakMap();
export function showThumbnail(row, image, { size = 0, canBeSharp = false, isWanted = () => true } = {}) {
  const isMissing = (is) => { // `:has` in the style sheet would make each frame of scrolling slower
    image.classList.toggle("missing", is);
    image.parentElement?.toggleAttribute("data-missing", is);
  };
  image.classList.remove("there");
  isMissing(false);
  const known = canBeSharp && isLarge(size) ? sharpest(row) : undefined;
  const found = new Promise((done) => (known ? done(known) : small.show(row, isWanted, done))).then((url) => {
    if (coming.get(image) !== found || !isWanted() || image.classList.contains("original")) return;
    if (url) place(image, url);
    else isMissing(true);
  });
  coming.set(image, found);
  return found;
}

// Load pictures before they are scrolled to, the first of them first, instead of those of the last call.
export function prefetch(rows) {
  small.ahead = rows;
  small.plan();
}

// Resolves when all pictures in an element are there, or have failed.
export const pictures = (element) =>
  Promise.all([...element.querySelectorAll("img")].map((image) => coming.get(image)));

// Show the picture in the pixels that a tile of this size has.
export function sharpen(row, image, size, isWanted) {
  sharp.get(sideOf(size)).show(row, isWanted, (url) => url && place(image, url));
}

export const isLarge = (size) => size * devicePixelRatio > LARGE;
