// What takes the place of the grid: suggested merges with their evidence.
import { getJson } from "/static/api.js";
import { $, bdi, button, make, number } from "/static/dom.js";
import { sideOf } from "/static/dialogs.js";
import * as data from "/static/store.js";

let areShown = false; // pairs of which somebody said that they are not the same
let turn = 0;

// `decides` is given what somebody chose, with the state that they saw.
export async function drawMerges(decides) {
  const place = $("panel"), mine = ++turn, base = data.store.seq;
  const waiting = make("p", { className: "muted", textContent: "Comparing categories …" });
  place.replaceChildren(waiting);
  let found, problem = "";
  try {
    found = await getJson("/api/merges");
  } catch (error) {
    problem = error.message;
  }
  if (mine !== turn || !waiting.isConnected) return; // something else is shown there by now
  if (problem) return void (waiting.textContent = problem);
  const left = found.filter((pair) => areShown || !pair.distinct), n = found.length - left.length;
  place.replaceChildren(
    make("p", { className: "muted", textContent: left.length
      ? "Pairs of categories that lie as close as the two halves of one would (a separation below 3.5), the closest first."
      : "No two categories lie close enough to look like one." }),
    ...left.map((pair) => card(pair, (event, action) => decides(event, action, base))));
  if (!n) return;
  place.append(button(`Show ${number(n)} put aside as not the same`, "", () => {
    areShown = true;
    drawMerges(decides);
  }));
}

function card(pair, decides) {
  const share = pair.second === null ? "" : `; for ${number(Math.round(100 * pair.second))} % of their images the other one is the second choice`;
  const evidence = `Separation ${pair.separation.toFixed(1)}${share}.`;
  const verb = (words, action) => button(words, "", (event) => decides(event, action), { disabled: data.store.run.read_only });
  const into = (id, other) => verb(`Merge into ${data.nameOf(id)}`, { action: "merge", into: id, categories: [other] });
  const apart = pair.distinct ? bdi("Somebody said that they are not the same.") : verb("Not the same", { action: "distinct", categories: [pair.a, pair.b] });
  return make("article", { className: "merge" }, make("div", { className: "pair" }, sideOf(pair.a), sideOf(pair.b)), make("p", { className: "muted" }, bdi(evidence)),
    make("div", { className: "tools" }, into(pair.b, pair.a), into(pair.a, pair.b), apart));
}
