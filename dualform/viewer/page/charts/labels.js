// Names in charts: which belong together, how they fit below bars, and how labels at line ends keep apart.
//
//   grouped(["mnist 0", "mnist 1", "fashion Bag", "fashion Coat"]);  // {groups: [mnist, fashion], names: ["0", "1", ...]}
//   spread([{want: 10}, {want: 12}], 14, 0, 200);                    // sets `y` and, without room, `crowded`
import {TEXT, text, textWidth} from "viewer/charts/axes";
import {svg} from "viewer/core/dom";
import {ROLES} from "viewer/core/palette";

const CROWD = 3; // more lines that end at one place than this: a name there would say little
export const ROLE_WORDS = {predicted: "predicted", true: "true", both: "predicted and true"};

/** Labels that begin with the name of a task, in runs of two or more: the task is said once for each run. */
export function grouped(labels) {
  const pairs = labels.map((label) => /^(\S+) (.+)$/.exec(String(label)));
  if (labels.length < 4 || pairs.some((pair) => !pair)) return null;
  const groups = [];
  pairs.forEach(([, name], i) => {
    const last = groups.at(-1);
    if (last?.name === name) last.count += 1;
    else groups.push({name, first: i, count: 1});
  });
  const fine = groups.length > 1 && groups.length <= 4 && groups.every((group) => group.count > 1);
  return fine ? {groups, names: pairs.map((pair) => pair[2])} : null;
}

/** How names fit into bands of this width: {way: "line" | "wrap" | "turn" | "rows", lines, height}. */
export function fitting(names, band) {
  const widest = (texts) => Math.max(0, ...texts.map((name) => textWidth(name)));
  if (widest(names) <= band - 4) return {way: "line", lines: names.map((name) => [name]), height: 18};
  const lines = names.map(halves);
  if (widest(lines.flat()) <= band - 4) return {way: "wrap", lines, height: 33};
  if (widest(names) <= 84 && band >= 15)
    return {way: "turn", lines: names.map((name) => [name]), height: widest(names) * 0.71 + 16};
  return {way: "rows", lines: names.map((name) => [name]), height: 0};
}

function halves(name) {
  const words = String(name).split(/(?<=[\s/-])/);
  if (words.length < 2) return [name];
  const cuts = words.slice(1).map((_, i) => [
    words
      .slice(0, i + 1)
      .join("")
      .trim(),
    words
      .slice(i + 1)
      .join("")
      .trim(),
  ]);
  return cuts.reduce((best, cut) =>
    Math.max(...cut.map((t) => t.length)) < Math.max(...best.map((t) => t.length)) ? cut : best,
  );
}

/** Moves labels that want to be at `want` apart, the important ones first; where there is no room, `crowded` is set: then
 * `y` keeps clear of the important ones only, and the label is for hovering. */
export function spread(labels, gap, top, bottom) {
  const placed = [],
    clear = (y, others) => y >= top && y <= bottom && others.every((other) => Math.abs(other - y) >= gap);
  const around = (y, reach) => Array.from({length: Math.ceil(reach) + 1}, (_, i) => [y + i, y - i]).flat();
  for (const label of [...labels].sort((a, b) => Boolean(b.important) - Boolean(a.important) || a.want - b.want)) {
    const crowd = labels.filter((other) => Math.abs(other.want - label.want) < gap / 2).length;
    if (label.important || crowd <= CROWD)
      label.y = around(label.want, label.important ? bottom - top : gap).find((y) => clear(y, placed));
    label.crowded = label.y === undefined;
    if (!label.crowded) placed.push(label.y);
  }
  const firm = labels.filter((label) => label.important && !label.crowded).map((label) => label.y);
  for (const label of labels) label.y ??= around(label.want, bottom - top).find((y) => clear(y, firm)) ?? label.want;
  return labels;
}

/** The paint of a row or line, and the one it has when lit: where some have a role, the others are grey or `soft`. */
export function paints(entry, some) {
  const own = entry.emphasis ? ROLES[entry.emphasis] : (entry.colour ?? "var(--accent)");
  return {"--paint": some && !entry.emphasis ? (entry.soft ?? "var(--quiet)") : own, "--own": own};
}

/** Which roles are in the chart, as a small legend that ends at `right`; with `value`, it says their values too. */
export function roleLegend(emphases, right, y, value = null) {
  const roles = Object.keys(ROLES)
    .filter((role) => emphases.includes(role))
    .reverse();
  let x = right;
  return svg(
    "g",
    {class: "legend"},
    roles.map((role) => {
      const words = roleWords(role, value);
      x -= textWidth(words) + 1;
      const word = text(x, y, words, {class: "tick"});
      x -= 15;
      const box = svg("rect", {x, y: y - 9, width: 10, height: 10, rx: 2, style: {fill: ROLES[role]}});
      x -= 12;
      return [box, word];
    }),
  );
}

const roleWords = (role, value) => (value ? `${ROLE_WORDS[role]} ${value(role)}` : ROLE_WORDS[role]);

export const legendWidth = (emphases, value = null) =>
  Object.keys(ROLES)
    .filter((role) => emphases.includes(role))
    .reduce((sum, role) => sum + textWidth(roleWords(role, value)) + 28, 0);

/** What stands in a chart without data. */
export function nothing(width, height, words = "Nothing to show") {
  return {
    nodes: [text(width / 2, height / 2, words, {class: "tick", "text-anchor": "middle", "font-size": TEXT + 1})],
    height,
  };
}
