// Bars, one for each class: upright when the names fit below them, else in rows. Values may be negative.
//
//   bars({rows: [{label: "3", value: 1.2e6, link: {class: 3}, emphasis: "predicted"}], unit: "attention weight"});
//   bars({rows, horizontal: true, caption: "Attention per class"});
//
// When some rows have a role (predicted, true, both), these have its colour and the others are grey, or pale in the colour of
// their task, until hovered over.
import {cut, domain, frame, line, reading, room, scale, text, textWidth, ticks, yAxis} from "viewer/charts/axes";
import {fitting, grouped, legendWidth, nothing, paints, ROLE_WORDS, roleLegend} from "viewer/charts/labels";
import {round, rowBars, rowGroup} from "viewer/charts/row_bars";
import {svg} from "viewer/core/dom";
import {number} from "viewer/core/format";
import {link} from "viewer/core/highlight";

export function bars({rows, unit = "", caption = "", horizontal = false, width, height = 240}) {
  const draw = (drawnWidth, drawnHeight) => {
    if (!rows.length) return nothing(drawnWidth, Math.min(drawnHeight, 120));
    if (horizontal) return rowBars(rows, unit, drawnWidth);
    return upright(rows, unit, drawnWidth, drawnHeight) ?? rowBars(rows, unit, drawnWidth);
  };
  const clickable = rows.some((row) => row.onclick);
  const role = clickable ? "group" : "img";
  return frame({name: caption || unit, describe: described(rows, unit), width, height, draw, kind: "bars", role});
}

function described(rows, unit) {
  const describeRow = (row) =>
    `${row.label}${row.emphasis ? ` (${ROLE_WORDS[row.emphasis]})` : ""}: ${number(row.value)}`;
  return rows.map(describeRow).join("; ") + (unit ? ` (${unit})` : "");
}

function upright(rows, unit, width, height) {
  const values = rows.map((row) => row.value ?? 0),
    {format, most} = reading(unit);
  const range = domain(most ? [...values, most] : values),
    marks = ticks(...range, 4);
  const left = room(marks, format),
    right = width - 4,
    band = Math.min(130, (right - left) / rows.length);
  const groups = grouped(rows.map((row) => row.label)),
    names = groups?.names ?? rows.map((row) => String(row.label));
  const fit = fitting(names, band);
  if (fit.way === "rows") return null;
  const below = fit.height + (groups ? 22 : 0),
    emphases = rows.map((row) => row.emphasis).filter(Boolean);
  const top = 44,
    bottom = Math.max(top + 90, height - below - (range[0] < 0 ? 14 : 4) - 4);
  const y = scale(range, [bottom, top]),
    base = bottom + (range[0] < 0 ? 14 : 0);
  const fits = Math.max(...values.map((value) => textWidth(format(value), 11))) <= band - 2;
  const drawn = rows.map((row, i) =>
    uprightBar(row, i, {y, band, left, top, base, fit, fits, format, some: emphases.length > 0}),
  );
  const valueText = fits ? null : (role) => format(rows.find((row) => row.emphasis === role).value);
  return {
    height: base + below + 4,
    nodes: [
      yAxis(marks, y, left, right, format),
      text(0, 12, cut(unit, right - legendWidth(emphases, valueText) - 10), {class: "axis-label"}),
      roleLegend(emphases, right, 12, valueText),
      drawn.map(({group}) => group),
      line(left, y(0), right, y(0), {class: "zero"}),
      drawn.map(({label}) => label), // above all bars: a neighbour must not cover it
      groups?.groups.map((group) => groupMark(group, left, band, base + fit.height, rows[group.first].colour)),
    ],
  };
}

function uprightBar(row, i, {y, band, left, top, base, fit, fits, format, some}) {
  const x = left + i * band,
    middle = x + band / 2,
    value = row.value ?? 0,
    barWidth = Math.min(60, band * 0.72);
  const [from, to] = [Math.min(y(0), y(value)), Math.max(y(0), y(value))];
  const name = `value ${fits ? "" : "crowded"} ${row.emphasis ?? ""}`;
  const label = text(middle, value < 0 ? to + 13 : from - 5, format(value), {class: name, "text-anchor": "middle"});
  for (const [variable, paint] of Object.entries(paints(row, some))) label.style.setProperty(variable, paint);
  if (row.link) link(label, row.link);
  const group = rowGroup(
    row,
    some,
    svg("rect", {class: "hit", x, y: top - 16, width: band, height: base + fit.height - top + 16}),
    svg("rect", {
      class: "fill",
      x: middle - barWidth / 2,
      y: from,
      width: barWidth,
      height: Math.max(0.75, to - from),
      rx: round(to - from),
    }),
    nameBelow(fit.lines[i], fit.way, middle, base),
  );
  const show = (on) => () => label.classList.toggle("shown", on);
  for (const event of ["pointerenter", "focus"]) group.addEventListener(event, show(true));
  for (const event of ["pointerleave", "blur"]) group.addEventListener(event, show(false));
  return {group, label};
}

function nameBelow(lines, way, x, base) {
  const turned = `translate(${x + 4} ${base + 14}) rotate(-45)`;
  if (way === "turn") return text(0, 0, lines[0], {class: "name", "text-anchor": "end", transform: turned});
  return lines.map((part, k) => text(x, base + 15 + 15 * k, part, {class: "name", "text-anchor": "middle"}));
}

/** A task's name under the names of its classes. */
function groupMark({name, first, count}, left, band, y, colour) {
  const from = left + first * band + 3,
    to = left + (first + count) * band - 3;
  return svg(
    "g",
    {},
    line(from, y + 4, to, y + 4, {class: "mark", style: colour ? {stroke: colour, "stroke-width": "3"} : null}),
    text((from + to) / 2, y + 19, cut(name, to - from), {class: "axis-label", "text-anchor": "middle"}),
  );
}
