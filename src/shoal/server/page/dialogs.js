// Small questions: a name, a target, two categories side by side, the keys, the past.
import { $, ask, bdi, button, images, kindOf, make, moment, number } from "/static/dom.js";
import { strip } from "/static/strips.js";
import * as data from "/static/store.js";

export function fillNames() {
  const names = data.living().map((category) => category.name).sort((a, b) => a.localeCompare(b));
  $("names").replaceChildren(...names.map((name) => make("option", { value: name })));
}

// A name, completed to that of a category unless it is of something else; `hint` says what comes of it.
export function askName(title, { value = "", verb, hint, quick = () => [], turn = null, isCategory = true }) {
  return ask(title(), (form, done) => {
    const input = make("input", { type: "text", value, maxLength: 200, autocomplete: "off", required: true });
    if (isCategory) input.setAttribute("list", "names");
    input.setAttribute("autofocus", "");
    const told = make("p", { className: "muted", aria: { live: "polite" } });
    const tell = () => (told.textContent = hint(input.value.trim()));
    input.addEventListener("input", tell);
    form.addEventListener("submit", () => input.value.trim() && done(input.value.trim()));
    const label = make("label", { className: "wide" }, "Name ", input);
    const submit = make("button", { type: "submit", className: "main", textContent: verb });
    const tools = make("div", { className: "tools" }, submit);
    const chips = make("div", { className: "tools" });
    const chip = (name) => button(name, "", () => done(name), { className: "chip" });
    const offer = async () => chips.replaceChildren(...(await quick()).map(chip));
    const draw = () => {
      $("dialog-title").textContent = title();
      fillNames();
      tell();
      offer().catch(() => {});
    };
    form.append(label, told, tools, chips);
    draw();
    input.select();
    return draw;
  }, { turn });
}

// Which two shall be one: `other` is known already, or not, and so is the one that stays.
export function askMerge(id, { other: otherId = null, into = otherId }, turn = null) {
  return ask("Merge two categories", (form, done) => {
    const value = otherId === null ? "" : data.nameOf(otherId);
    const input = make("input", { type: "text", autocomplete: "off", value, required: true });
    input.setAttribute("list", "names");
    input.setAttribute("autofocus", "");
    const pair = make("div", { className: "pair" });
    const told = make("p", { className: "muted", aria: { live: "polite" } });
    const stays = make("select", { ariaLabel: "Which name stays" });
    let last = null;
    const draw = () => {
      const other = data.named(input.value.trim());
      const chosen = other && other.id === last ? stays.value : other?.id === otherId ? String(into) : "";
      const isFit = other && other.id !== id;
      last = other?.id;
      pair.replaceChildren(sideOf(id), ...(isFit ? [sideOf(other.id)] : []));
      stays.replaceChildren(...(isFit ? [other.id, id] : [id]).map((own) => {
        const value = String(own);
        return make("option", { value, textContent: data.nameOf(own), selected: value === chosen });
      }));
      const apart = isFit && data.areApart(id, other.id) ? " Somebody said that they are not the same." : "";
      const one = () => `${images(data.sizeOf(id) + data.sizeOf(other.id))} will be one category.${apart}`;
      told.textContent = isFit ? one() : "Choose the other category by its name.";
    };
    input.addEventListener("input", draw);
    form.addEventListener("submit", () => {
      const other = data.named(input.value.trim());
      if (!other || other.id === id) return;
      const into = Number(stays.value);
      done({ other: other.id, into, categories: [into === id ? other.id : id] });
    });
    const merge = make("button", { type: "submit", className: "main", textContent: "Merge" });
    form.append(make("label", { className: "wide" }, "Merge with ", input), pair, told,
      make("div", { className: "tools" }, make("label", {}, "Name that stays ", stays), merge));
    const changed = () => {
      if (!data.isLiving(id)) return done(null); // somebody has merged it, or undone it
      fillNames();
      draw();
    };
    fillNames();
    draw();
    return changed;
  }, { wide: true, turn });
}

export function sideOf(id) {
  const category = data.store.categories.get(id), kind = kindOf(category);
  const facts = `${images(data.sizeOf(id))}, confidence ${data.sureOf(id).toFixed(2)}`;
  return make("section", { className: "side-of" },
    make("h3", {}, bdi(category.name), " ", make("span", { className: `kind ${kind}`, textContent: kind })),
    make("p", { className: "muted", textContent: facts }),
    strip(data.typicalOf(id, 18), `Most typical images of ${category.name}`));
}

const KEYS = [
  ["c", "confirm the selected images; with none selected everything undecided in the category, and go to the next one; "
    + "in a list across categories the image in focus"],
  ["x", "reject the selected images, or the one in focus: it does not belong here"],
  ["f", "flag them: looked at, uncertain"],
  ["m", "move them to another category; a new name makes a new one"],
  ["n", "new category of them"],
  ["2", "move the image in focus to its second choice"],
  ["r", "rename the category"],
  ["j", "join it with another (merge)"],
  ["s", "split it"],
  ["g", "grow it: find more of its images"],
  ["l", "look for images like the one in focus"],
  ["u, Ctrl+Z", "undo your last action in this window, or before you opened it"],
  ["U, Ctrl+Y", "redo it"],
  ["arrows, Home, End, PgUp, PgDn", "move the focus; with Shift select"],
  ["Space", "select the image in focus, or not"],
  ["a, Ctrl+A", "select all; Esc selects none"],
  ["Enter", "enlarge; there c, x, f, m, n and 2 decide on the image that is shown and go on, the arrows go on, "
    + "l looks for images like it, u undoes"],
  ["+, -", "zoom in the enlarged image, as do the wheel and a double click, which shows it pixel by pixel; "
    + "then dragging and the arrows move it, and Esc shows all of it again"],
  ["] and [", "next and previous category"],
  ["o", "most or least typical first"],
  ["/", "find a category"],
  ["?", "this list"],
];

export const showKeys = () => ask("Keys", (form) => {
  const list = make("dl", { className: "keys" });
  for (const [keys, words] of KEYS) {
    const shown = keys.split(", ").flatMap((key, at) => [at ? " " : "", make("kbd", { textContent: key })]);
    list.append(make("dt", {}, ...shown), make("dd", { textContent: words }));
  }
  const mouse = "Click selects an image, or not; Shift+click selects from there to here, dragging a box. "
    + "Double-click enlarges. “Single keys”, at the top, turns keys of one character off.";
  form.append(list, make("p", { className: "muted", textContent: mouse }));
}, { wide: true });

// What of the review of another answer could not be done again; told once, and again only by the next server.
export async function tellMisfits() {
  const { does_not_fit: misfits, csrf } = data.store.run;
  if (!misfits.length || sessionStorage.getItem("shoal-misfits") === csrf) return;
  sessionStorage.setItem("shoal-misfits", csrf);
  const about = "The review of another answer was done again on this one. Of these actions not everything could be:";
  await ask("What no longer fits", (form) => form.append(
    make("p", { textContent: about }),
    make("ul", {}, ...misfits.map((words) => make("li", {}, bdi(words))))));
}

export const showHistory = () => ask("What was done", (form) => {
  const entries = [...data.store.entries].reverse();
  const line = ({ seq, at, by, words }) => {
    const textContent = `${number(seq)} · ${moment(at)} · `;
    return make("li", {}, make("span", { className: "muted", textContent }), bdi(by), ": ", bdi(words));
  };
  const list = make("ol", { className: "history" }, ...entries.map(line));
  const n = data.store.seq, cut = `The last ${number(entries.length)} of ${number(n)} actions; review.jsonl has all.`;
  if (n > entries.length) form.append(make("p", { className: "muted", textContent: cut }));
  form.append(entries.length ? list : make("p", { textContent: "Nothing yet." }));
});
