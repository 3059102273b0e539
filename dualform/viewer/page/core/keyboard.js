// The keyboard: what a person can do without the mouse, and the dialog that lists it.
import {el} from "viewer/core/dom";
import {button} from "viewer/core/elements";
import {neighbour} from "viewer/core/input_list";
import {undo} from "viewer/core/mute_sets";
import {state} from "viewer/core/state";

const SHORTCUTS = [
  [["←", "→"], "the input before or after, in the order of the list"],
  [["1", "…", "9"], "choose a layer"],
  [["/"], "find an input by its number"],
  [["u"], "undo the last muting"],
  [["Esc"], "close what is open, or go back to the list"],
  [["?"], "this list"],
];

const WITH_LAYERS = new Set(["spotlight", "prompt"]); // pages
const MOUSE =
  "In a chart over training time, drag to mark a stretch. Hover over a class, image or step to see it everywhere.";

/** Another input, with what belongs to the old one left behind. */
export function choose(index, start = state.get().start) {
  state.set({page: "spotlight", input: index, start, step: null});
}

export async function go(direction) {
  const now = state.get();
  if (now.page !== "spotlight" || typeof now.input !== "number") return;
  const next = await neighbour(now, direction).catch(() => null);
  if (next && state.get().input === now.input) choose(next.index, next.start);
}

function typing(target) {
  return target.closest("input, select, textarea, [contenteditable], [role=slider], svg") !== null;
}

async function search() {
  if (state.get().page !== "home") state.set({page: "home"});
  document.querySelector("[data-test=search]")?.focus();
}

export function helpDialog() {
  const keyed = (keys) =>
    el(
      "th",
      {scope: "row"},
      keys.map((key) => el("kbd", {class: "kbd"}, key)),
    );
  const rows = SHORTCUTS.map(([keys, what]) => el("tr", {}, keyed(keys), el("td", {}, what)));
  const close = button("Close", () => dialog.close());
  const dialog = el(
    "dialog",
    {class: "help", "aria-label": "Keyboard"},
    el("h2", {}, "Keyboard"),
    el("table", {}, el("tbody", {}, rows)),
    el("p", {class: "muted-note"}, MOUSE),
    close,
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

export function listen(run) {
  const layer = (key) => {
    const chosen = run.layers[Number(key) - 1];
    if (chosen && WITH_LAYERS.has(state.get().page)) state.set({layer: chosen.name}, {replace: true});
  };
  const actions = {
    ArrowLeft: () => go(-1),
    ArrowRight: () => go(1),
    "/": search,
    u: undo,
    "?": helpDialog,
    Escape: () => state.get().page !== "home" && state.set({page: "home"}),
  };
  document.addEventListener("keydown", (event) => {
    const {key, target} = event;
    if (
      event.defaultPrevented ||
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      document.querySelector("dialog[open]")
    )
      return;
    if (target instanceof Element && typing(target)) return key === "Escape" ? target.blur() : undefined;
    const action = /^[1-9]$/.test(key) ? () => layer(key) : actions[key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
