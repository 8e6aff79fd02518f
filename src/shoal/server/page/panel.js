// What takes the place of the grid: suggested merges with their evidence.
import { getJson } from "/static/api.js";
import { $, bdi, button, make, number } from "/static/dom.js";
import { sideOf } from "/static/dialogs.js";
import * as data from "/static/store.js";

// Pairs that are not the same: kept in this browser, for this run.
const storageKey = () => `shoal-not-one-${data.store.run.version}`;
const pairKey = ({ a, b }) => `${Math.min(a, b)}-${Math.max(a, b)}`;
const dismissed = () => new Set(JSON.parse(localStorage.getItem(storageKey()) ?? "[]"));
const keep = (pairs) => localStorage.setItem(storageKey(), JSON.stringify(pairs));

export async function drawMerges(merge) {
  const place = $("panel");
  place.replaceChildren(make("p", { className: "muted", textContent: "Comparing categories …" }));
  let found;
  try {
    found = await getJson("/api/merges");
  } catch (error) {
    place.replaceChildren(make("p", { className: "muted", textContent: error.message }));
    return;
  }
  const hidden = dismissed();
  const left = found.filter((pair) => !hidden.has(pairKey(pair)));
  place.replaceChildren(
    make("p", { className: "muted", textContent: left.length
      ? "Pairs of categories that lie as close as the two halves of one would (a separation below 3.5), the closest first."
      : "No two categories lie close enough to look like one." }),
    ...left.map((pair) => card(pair, merge, () => {
      keep([...dismissed(), pairKey(pair)]);
      drawMerges(merge);
    })));
  if (left.length === found.length) return;
  place.append(button(`Show ${number(found.length - left.length)} put aside as not the same`, "", () => {
    keep([]);
    drawMerges(merge);
  }));
}

function card(pair, merge, dismiss) {
  const share = `${number(Math.round(100 * pair.second))} %`;
  const evidence = `Separation ${pair.separation.toFixed(1)}; for ${share} of their images the other one is the second choice.`;
  const into = (id, other) => button(`Merge into ${data.nameOf(id)}`, "", () => merge({ into: id, categories: [other] }), { disabled: data.store.run.read_only });
  return make("article", { className: "merge" }, make("div", { className: "pair" }, sideOf(pair.a), sideOf(pair.b)), make("p", { className: "muted" }, bdi(evidence)),
    make("div", { className: "tools" }, into(pair.b, pair.a), into(pair.a, pair.b), button("Not the same", "", dismiss)));
}
