// Strips of pictures, with words for whoever does not see them.
import { describe, inWords } from "/static/details.js";
import { make, thumb } from "/static/dom.js";

const wordless = new Map(); // pictures that nothing is said of yet, by row

export function strip(rows, label) {
  const thumbs = rows.map((row) => thumb(row));
  if (!wordless.size) setTimeout(tell); // for all strips that are made now
  rows.forEach((row, at) => wordless.set(row, [...(wordless.get(row) ?? []), thumbs[at].firstChild]));
  return make("div", { className: "strip", role: "group", aria: { label } }, ...thumbs);
}

async function tell() {
  const places = new Map(wordless);
  wordless.clear();
  const found = await describe([...places.keys()]).catch(() => []);
  for (const image of found) for (const one of places.get(image.row)) one.alt = inWords(image);
}
