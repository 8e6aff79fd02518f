// Strips of pictures, with text for screen readers.
import { describe, inWords } from "/static/details.js";
import { make, thumb } from "/static/dom.js";

const undescribed = new Map(); // pictures that nothing is said of yet, by row

export function strip(rows, label) {
  const thumbs = rows.map((row) => thumb(row));
  if (!undescribed.size) setTimeout(describeAll); // for all strips that are made now
  rows.forEach((row, at) => undescribed.set(row, [...(undescribed.get(row) ?? []), thumbs[at].firstChild]));
  return make("div", { className: "strip", role: "group", aria: { label } }, ...thumbs);
}

async function describeAll() {
  const places = new Map(undescribed);
  undescribed.clear();
  const found = await describe([...places.keys()]).catch(() => []);
  for (const image of found) for (const one of places.get(image.row)) one.alt = inWords(image);
}
