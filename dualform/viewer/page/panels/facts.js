// The run at a glance: what was recorded, how exact it is, and what could be shown if more were named.
import {el} from "viewer/core/dom";
import {table} from "viewer/core/elements";
import {bytes, number, percent} from "viewer/core/format";
import {jobs} from "viewer/core/jobs";
import {certificateBadge} from "viewer/panels/header";
import {panel} from "viewer/panels/panel";

const CAN = {
  draw: "Drawing",
  predict: "Predictions",
  spotlight: "Spotlight",
  time: "Time travel",
  mute: "Muting",
  suspects: "Suspects",
};
const OF_KIND = {draw: ({kind}) => kind === "images", suspects: ({kind}) => kind !== "text"}; // else nobody expects it

function when(created) {
  const date = new Date(created);
  return Number.isNaN(date.getTime())
    ? String(created ?? "")
    : date.toLocaleString("en-GB", {dateStyle: "medium", timeStyle: "short"});
}

function layerTable(run) {
  const row = ({name, kind, d_in: from, d_out: to, slots}) => [
    name,
    kind,
    `${number(from)} → ${number(to)}`,
    number(slots),
  ];
  return table(["layer", "kind", "size", "slots"], run.layers.map(row), {numeric: [3]});
}

function stops(run) {
  const {length} = run.snapshots ?? [];
  return length ? `${number(length)} ${length === 1 ? "snapshot" : "snapshots"}` : "no snapshots";
}

function pairs(run) {
  const tags = Object.entries(run.tags ?? {})
    .map(([name, kind]) => `${name} (${kind})`)
    .join(", ");
  const {accuracy = null, count} = run.inputs ?? {};
  const times = run.tasks.map(
    ({name, first_step: first, last_step: last}) => `${name}: steps ${number(first)} to ${number(last)}`,
  );
  return [
    ["Model", run.model ?? "not named"],
    ["Accuracy", accuracy === null ? null : `${percent(accuracy)} of ${number(count)} test inputs`],
    [
      "Training",
      `${number(run.steps)} steps of ${run.optimizers.join(", ")}${run.ended === "complete" ? "" : ` (${run.ended ?? "cut off, or still being recorded"})`}`,
    ],
    ["Tasks", times.length ? times.join("; ") : null],
    ["Coverage", run.coverage?.text ?? null],
    ["Notes", run.notes?.length ? run.notes.join("; ") : null],
    ["Stored", `${run.stored}, ${bytes(run.bytes)}, ${stops(run)}`],
    ["Tags", tags || "none"],
    ["Recorded", [when(run.created), run.software].filter(Boolean).join(", with ")],
  ].filter(([, value]) => value !== null);
}

export function factsPanel(run) {
  const items = pairs(run).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]);
  const list = el("dl", {class: "facts", "data-test": "home-facts"}, items);
  const facts = panel({title: "This run", name: `${run.name}-facts`, body: [list, layerTable(run)]});
  facts.data(run.layers);
  facts.python(run.python);
  return facts;
}

function errorTable(layers) {
  const row = ([name, {relative_error: error, ok}]) => [name, number(error), ok ? "ok" : "not exact"];
  return table(["layer", "relative error", ""], Object.entries(layers).map(row), {numeric: [1]});
}

const MEANING =
  "Each layer, put together from its slots alone, is compared with the trained layer: the smaller the error, " +
  "the more exact everything on these pages.";

export function certificatePanel(run) {
  const badge = certificateBadge(run, "certificate-detail");
  const table = el("div");
  const words = el("p", {class: "muted-note"}, MEANING);
  const card = panel({
    title: "Certificate",
    name: `${run.name}-certificate`,
    body: [el("p", {}, badge.element), table, words],
  });
  const stop = jobs.subscribe(({certificate, jobs: all}) => {
    const reason = all.find(({name}) => name === "certificate")?.failed;
    if (reason) words.textContent = reason;
    if (!certificate || table.childNodes.length) return;
    const {layers = {}, accounted} = certificate;
    const rows = accounted ? {...layers, "accounted for": accounted} : layers;
    if (Object.keys(rows).length) table.replaceChildren(errorTable(rows));
    card.data(certificate);
    card.python(certificate.python);
  });
  return {element: card.element, stop: () => [badge.stop(), stop()]};
}

/** What is missing, with what to pass; and what this run cannot show, with the reason. Null if there is nothing to say. */
export function missingPanel(run) {
  const missing = run.missing.map(({what, do: help}) => el("li", {}, el("b", {}, what), ": ", help));
  const relevant = Object.entries(run.cannot).filter(([name]) => OF_KIND[name]?.(run) ?? true);
  const cannot = relevant.map(([name, why]) => el("li", {}, el("b", {}, CAN[name] ?? name), ": ", why));
  if (!missing.length && !cannot.length) return null;
  const part = (title, items) => (items.length ? [el("h3", {}, title), el("ul", {class: "reasons"}, items)] : []);
  const body = [...part("Could be shown, if named", missing), ...part("This run cannot tell", cannot)];
  return panel({title: "Not shown", name: "missing", body});
}
