// Thumbnails, many to a request. Only those still wanted are asked for; sharper ones follow where tiles are large.
import { getBytes } from "/static/api.js";
import { store } from "/static/store.js";

const AT_ONCE = 64, SHARP_AT_ONCE = 6, IN_FLIGHT = 3, KEPT = 20000, SHARP_KEPT = 1500;
const PAUSE_MS = 40; // between two requests, so that a scrolling grid asks for some lines at once and not for each
const LARGE = 88; // pixels on the screen beyond which a thumbnail of 64 looks soft

class Loader {
  constructor(atOnce, inFlight, most, more) {
    Object.assign(this, { atOnce, inFlight, most, more, kept: new Map(), wanted: new Map(), running: 0, planned: false, asked: -PAUSE_MS });
  }

  // Show a picture in an <img>; whatever it showed before is forgotten.
  show(row, image, isWanted) {
    const url = this.kept.get(row);
    if (url !== undefined) {
      this.kept.delete(row);
      this.kept.set(row, url);
      if (url) place(image, url);
      return;
    }
    const found = this.wanted.get(row);
    if (found) found.push([image, isWanted]);
    else this.wanted.set(row, [[image, isWanted]]);
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
    while (this.running < this.inFlight && this.wanted.size) {
      const batch = [];
      for (const [row, places] of [...this.wanted].reverse()) { // the latest first
        const still = places.filter(([, isWanted]) => isWanted());
        this.wanted.delete(row);
        if (still.length) batch.push([row, still]);
        if (batch.length === this.atOnce) break;
      }
      if (!batch.length) return;
      this.asked = performance.now();
      this.fetch(batch);
    }
  }

  async fetch(batch) {
    this.running++;
    try {
      const bytes = await getBytes("/thumbnails", { rows: batch.map(([row]) => row).join(","), v: store.run.version, ...this.more });
      const sizes = new DataView(bytes);
      let at = 4 * (1 + batch.length);
      batch.forEach(([row, places], i) => {
        const size = sizes.getUint32(4 * (i + 1), true);
        const url = size ? dataUrl(new Uint8Array(bytes, at, size)) : "";
        at += size;
        this.keep(row, url);
        for (const [image, isWanted] of places) if (url && isWanted()) place(image, url);
      });
    } catch {
      // the server is away: whoever scrolls asks again
    } finally {
      this.running--;
      if (this.wanted.size) this.plan();
    }
  }

  keep(row, url) {
    this.kept.set(row, url);
    if (this.kept.size <= this.most) return;
    this.kept.delete(this.kept.keys().next().value);
  }
}

// A picture as an address of its own: unlike a blob's, it is made without asking the browser's other processes.
function dataUrl(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode.apply(null, bytes.subarray(at, at + 8192));
  return `data:image/webp;base64,${btoa(text)}`;
}

const small = new Loader(AT_ONCE, IN_FLIGHT, KEPT, {});
const sharp = new Loader(SHARP_AT_ONCE, 1, SHARP_KEPT, { sharp: 1 });

// What an <img> shows counts only while it still is of that row.
function place(image, url) {
  image.src = url;
  image.classList.add("there");
}

export function showThumbnail(row, image, { size = 0, canBeSharp = false, isWanted = () => true } = {}) {
  image.classList.remove("there");
  const known = canBeSharp && size * devicePixelRatio > LARGE ? sharp.kept.get(row) : undefined;
  if (known) place(image, known);
  else small.show(row, image, isWanted);
}

export function sharpen(row, image, isWanted) {
  sharp.show(row, image, isWanted);
}

export const isLarge = (size) => size * devicePixelRatio > LARGE;
