// A field that finds a category by typing. While nothing is typed, digits pick one of the likely categories below it.
import { bdi, images, kindOf, make, thumb } from "/static/dom.js";
import { makeScreen } from "/static/presses.js";
import * as data from "/static/store.js";
import { pictures } from "/static/thumbs.js";

const MOST = 9;
const STEPS = { ArrowUp: -1, ArrowDown: 1 };

// `suggest` resolves to the ids of likely categories, `isOffered` tells whether a category may be chosen. `pick` receives
// `{ id }`, or `{ name }` of a category to create where `canCreate`; `show` receives the id that Enter would pick, or null.
export function makeCategoryField({ suggest, isOffered, pick, show = () => {}, canCreate = false, value = "" }) {
  const input = make("input", { type: "text", value, maxLength: 200, autocomplete: "off", role: "combobox" });
  for (const [name, text] of [["controls", "targets"], ["expanded", "true"]]) input.setAttribute(`aria-${name}`, text);
  input.setAttribute("autofocus", "");
  const list = make("ul", { id: "targets", role: "listbox", ariaLabel: "Categories" });
  const screen = makeScreen();
  let likely = null, options = [], active = -1;

  const text = () => input.value.trim();
  const optionsOf = () => {
    if (!text()) return (likely ?? []).filter(isOffered).slice(0, MOST).map((id) => ({ id }));
    const found = data.matching(text()).filter(isOffered).slice(0, MOST).map((id) => ({ id }));
    if (canCreate && !data.named(text())) found.push({ name: text() });
    return found;
  };

  function draw() {
    options = optionsOf();
    active = text() && options[0]?.id !== undefined ? 0 : -1; // a new category is never chosen by Enter alone
    list.replaceChildren(...options.map(optionElement));
    if (!options.length) list.append(make("li", { className: "muted", textContent: emptyText() }));
    screen.changed(pictures(list));
    mark();
  }

  function emptyText() {
    if (text()) return "No category matches.";
    return likely === null ? "Looking for likely categories …" : "Type the name of a category.";
  }

  function optionElement(option, at) {
    const settings = { role: "option", id: `target-${at}`, on: { click: () => pick(option) } };
    if (option.id === undefined) return make("li", settings, "New category ", bdi(option.name));
    const category = data.store.categories.get(option.id), [row] = data.typicalOf(option.id, 1);
    const picture = row === undefined ? make("span", { className: "thumb" }) : thumb(row);
    const digit = text() ? null : make("kbd", { textContent: String(at + 1) });
    const about = make("span", { className: "muted", textContent: `${kindOf(category)}, ${images(data.sizeOf(option.id))}` });
    return make("li", settings, digit, picture, bdi(category.name), about);
  }

  function mark() {
    [...list.children].forEach((element, at) => element.setAttribute("aria-selected", at === active));
    if (active >= 0) input.setAttribute("aria-activedescendant", `target-${active}`);
    else input.removeAttribute("aria-activedescendant");
    list.children[active]?.scrollIntoView({ block: "nearest" });
    show(options[active]?.id ?? null);
  }

  input.addEventListener("input", draw);
  input.addEventListener("keydown", (event) => {
    const { key } = event;
    if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (STEPS[key] && options.length) {
      event.preventDefault();
      active = (Math.max(active, key === "ArrowUp" ? 0 : -1) + STEPS[key] + options.length) % options.length;
      mark();
    } else if (key === "Enter" && options[active]) {
      event.preventDefault();
      if (!event.repeat) pick(options[active]);
    } else if (!text() && options[Number(key) - 1]) {
      event.preventDefault();
      if (screen.wasSeen(event)) pick(options[Number(key) - 1]);
    }
  });

  // Draw again after a change; likely categories are requested again.
  async function refresh() {
    draw();
    likely = await suggest().catch(() => []);
    if (input.isConnected && !text()) draw();
  }

  return { element: make("label", { className: "wide" }, "Category ", input), input, list, refresh };
}
