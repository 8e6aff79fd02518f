// The view is the address: what is looked at can be kept and sent.
import { $ } from "/static/dom.js";
import { rowsInside } from "/static/map.js";
import { nextOpen } from "/static/side.js";
import * as data from "/static/store.js";

const { store } = data;
const SORT = "open"; // of the categories, where nobody chose another

export function addressOf(view) {
  const words = { view: view.kind };
  if (view.kind === "category") words.id = view.id;
  if (view.kind === "branch") words.ids = view.ids.join();
  if (view.kind === "similar") words.row = view.row;
  if (view.kind === "lasso") words.lasso = view.lasso;
  if (view.kind === "map" && view.focus >= 0) words.id = view.focus;
  if (view.order !== "least") words.order = view.order;
  if (view.status !== "") words.status = store.run.statuses[view.status];
  if (view.low > 0) words.low = view.low;
  if (view.high < 1) words.high = view.high;
  if (view.path) words.path = view.path;
  if ($("sort").value !== SORT) words.sort = $("sort").value;
  return `#${new URLSearchParams(words)}`;
}

// A view without filters, which hide images of what it shows.
export const CLEAR = { status: "", low: 0, high: 1, path: "" };
export const countFilters = (view) => Object.entries(CLEAR).filter(([name, value]) => view[name] !== value).length;

function filtersOf(words) {
  const share = (name, otherwise) => Math.min(1, Math.max(0, Number(words.get(name) ?? otherwise) || 0));
  const status = store.run.statuses.indexOf(words.get("status") ?? "-");
  return {
    order: [...$("order").options].find(({ value }) => value === words.get("order"))?.value ?? "least",
    path: words.get("path") ?? "",
    status: status < 0 ? "" : status,
    low: share("low", 0),
    high: words.has("high") ? share("high", 1) : 1,
  };
}

// Show what the address says, or else the first category with something undecided.
export function fromAddress(shows, { similar, kinds }) {
  const words = new URLSearchParams(location.hash.slice(1)), filters = filtersOf(words);
  const show = (change) => shows({ ...filters, ...change });
  const sort = words.get("sort") ?? SORT;
  if ([...$("sort").options].some(({ value }) => value === sort)) $("sort").value = sort;
  const kind = words.get("view"), id = Number(words.get("id") ?? -1), row = Number(words.get("row") ?? -1);
  if (kind === "category" && data.isLiving(id)) return show({ kind, id });
  if (kind === "similar" && Number.isInteger(row) && row >= 0 && row < store.n) return similar(row, show);
  const ids = (words.get("ids") ?? "").split(",").map((one) => Number(one || -1)).filter(data.isLiving);
  if (kind === "branch" && ids.length) return show({ kind, ids });
  const lasso = kind === "lasso" ? words.get("lasso") : null;
  if (lasso) return show({ kind, lasso, rows: rowsInside(lasso) });
  if (kinds.includes(kind)) return show({ kind, focus: kind === "map" ? id : -1 });
  const first = nextOpen(-1) ?? data.living()[0]?.id;
  return show(first === undefined ? { kind: "all" } : { kind: "category", id: first });
}
