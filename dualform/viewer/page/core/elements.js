// Small parts that several panels share.
//
//     button("Clear", clearAll, {"data-test": "clear-mute"});
//     table(["layer", "slots"], [["layer-0", "96,000"]], {numeric: [1]});
import {el} from "viewer/core/dom";

export function button(text, onclick, attributes = {}) {
  return el("button", {type: "button", onclick, ...attributes}, text);
}

/** A table whose first column names the rows; columns in `numeric` are set to the right. */
export function table(head, rows, {numeric = []} = {}) {
  const kind = (k) => numeric.includes(k) && "numeric";
  const cell = (content, k) => (k ? el("td", {class: kind(k)}, content) : el("th", {scope: "row"}, content));
  const heads = head.map((text, k) => el("th", {scope: "col", class: kind(k)}, text));
  return el(
    "table",
    {class: "plain"},
    el("thead", {}, el("tr", {}, heads)),
    el(
      "tbody",
      {},
      rows.map((row) => el("tr", {}, row.map(cell))),
    ),
  );
}

/** Why there is nothing to see, in the place where it would be. */
export function reason(text) {
  return el("p", {class: "muted-note"}, text);
}

/** A name with a square of its colour before it, if it has one. */
export function dotted(text, colour, quiet = false) {
  const kinds = [colour && "dotted", quiet && "quiet-text"].filter(Boolean);
  return el("span", {class: kinds.join(" "), style: colour ? {"--dot": colour} : null}, text);
}
