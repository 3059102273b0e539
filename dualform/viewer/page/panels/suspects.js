// The list of training examples whose label is probably wrong, the most suspect first; a click mutes one of them.
import {outputClass, outputName} from "viewer/core/classes";
import {el} from "viewer/core/dom";
import {button, reason} from "viewer/core/elements";
import {number, percent} from "viewer/core/format";
import {canUndo, clear as clearAll, isMuted, toggleId, undo} from "viewer/core/mute_sets";
import {taskColour} from "viewer/core/palette";
import {picture} from "viewer/core/picture";
import {MAX_SUSPECTS, SUSPECTS_AT_ONCE} from "viewer/core/requests";
import {state} from "viewer/core/state";
import {chip} from "viewer/panels/mute_tray";
import {panel} from "viewer/panels/panel";

const SIZE = 92;
const HONEST =
  "The score is the probability of the likeliest other class less that of the label, as the model said just before it " +
  "learnt from the example: the mean over all visits after the first quarter of the training. Below 0 the label was " +
  "likelier. These are candidates, not proof: an unusual example with the right label is suspect, too.";
const HELP =
  "At each visit the model, taught by the others, says something of an example before it learns from it once more; the " +
  "errors that were recorded tell what. Below each example are its label and the likeliest other class, each with its " +
  "probability, averaged over these visits, and the score. Click an example to mute it. Saved numbers are those of the " +
  "examples listed here: dualform suspects RUN --top 5000 --csv FILE writes more.";
const NONE = "No example was visited after the first quarter of the training.";

/** What output `k` is called: as its class is, where the run has one of it. */
function nameOf(run, task, k) {
  const own = outputClass(run, task, k);
  return own === null ? outputName(run, task, k) : String(run.classes[own].name);
}

const labelOf = (run, {task, label}) => nameOf(run, task, label);
const suggestedOf = (run, {task, suggested}) => nameOf(run, task, suggested);
const score = (row) => `${row.score < 0 ? "−" : ""}${Math.abs(row.score).toFixed(2)}`;
const canMute = (run) => !run.cannot.mute;
/** In whole per cent, so that two of them fit below a picture. */
function share(p) {
  if (p < 0.005) return "<1%";
  return p > 0.995 ? ">99%" : `${Math.round(100 * p)}%`;
}

const asTagged = (row) => ({...row, tags: {...row.tags, id: row.id}}); // as rows of the spotlight are

function describe(run, row) {
  const visits = `${number(row.visits)} ${row.visits === 1 ? "visit" : "visits"}`;
  const task = run.tasks.length > 1 && row.task !== null ? ` of ${row.task}` : "";
  return (
    `Training example ${row.id}${task}, labelled ${labelOf(run, row)} (${percent(row.probability)}), ` +
    `the others say ${suggestedOf(run, row)} (${percent(row.suggested_probability)}), score ${score(row)}, ${visits}`
  );
}

function thumb(run, row) {
  const words = describe(run, row),
    frame = run.tasks.length > 1 && row.task !== null ? taskColour(run, row.task) : null;
  const line = (text, name, p) => el("span", {}, text, name, el("span", {class: "quiet-text"}, ` ${share(p)}`));
  const caption = [
    line("labelled ", el("b", {}, labelOf(run, row)), row.probability),
    line("others say ", el("b", {class: "role-predicted"}, suggestedOf(run, row)), row.suggested_probability),
    el("span", {class: "quiet-text"}, `score ${score(row)} · id ${row.id}`),
  ];
  const onclick = canMute(run) ? () => toggleId(row.id) : null;
  const figure = picture(row.pixels, run.image.shape, {
    size: SIZE,
    alt: words,
    caption,
    frame,
    onclick,
  });
  figure.title = `${words}${onclick ? "\nClick to mute it" : ""}`;
  Object.assign(figure.dataset, {test: "suspect", id: row.id});
  return figure;
}

// Ids and tags are names, even where they are numbers: no commas in them.
function textTable(run, rows) {
  const tags = Object.keys(rows[0].tags);
  const columns = [
    ["id", (row) => row.id],
    ["labelled", (row) => `${labelOf(run, row)} (${percent(row.probability)})`],
    ["the others say", (row) => `${suggestedOf(run, row)} (${percent(row.suggested_probability)})`],
    ["score", score],
    ["visits", (row) => number(row.visits)],
    ...tags.map((tag) => [tag, (row) => row.tags[tag] ?? "–"]),
  ];
  const line = (row) => {
    const cells = columns.map(([, value]) => el("td", {class: "numeric"}, String(value(row))));
    const mute = button("mute", () => toggleId(row.id), {"aria-label": `Mute training example ${row.id}`});
    return el("tr", {"data-test": "suspect", "data-id": row.id}, cells, canMute(run) && el("td", {}, mute));
  };
  const head = columns.map(([name]) => el("th", {scope: "col", class: "numeric"}, name));
  if (canMute(run)) head.push(el("td"));
  return el("table", {class: "plain slots"}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows.map(line)));
}

const saved = (run, {id, label, suggested, score, probability, visits, tags, ...row}) => ({
  id,
  label,
  label_name: nameOf(run, row.task, label),
  suggested,
  suggested_name: nameOf(run, row.task, suggested),
  score,
  probability,
  suggested_probability: row.suggested_probability,
  visits,
  ...tags,
});

/** {element, show, busy, fail, clear, update}. */
export function suspectsPanel(run) {
  const count = el("p", {class: "quiet-text", role: "status", "data-test": "suspect-count"});
  const list = el("div");
  const more = button("Show more", () => state.set({top: rows.length + SUSPECTS_AT_ONCE}, {replace: true}), {
    "data-test": "more",
    hidden: true,
  });
  const body = [el("p", {class: "muted-note honest-note", "data-test": "honest"}, HONEST), count, list, more];
  const card = panel({
    title: "Suspect labels",
    name: `${run.name}-suspects`,
    help: HELP,
    body: run.cannot.suspects ? reason(run.cannot.suspects) : body,
  });
  let rows = [];

  function mark({mute}) {
    for (const [k, item] of list.querySelectorAll("[data-test=suspect]").entries()) {
      const muted = isMuted(mute, asTagged(rows[k]));
      item.classList.toggle("is-muted", muted);
      item.querySelector("button")?.setAttribute("aria-pressed", String(muted));
    }
  }
  function show(answer) {
    rows = answer.suspects;
    const pictured = run.image && rows.some(({pixels}) => pixels);
    list.className = pictured ? "thumbs suspects" : "suspects scroll";
    const items = pictured ? rows.map((row) => thumb(run, row)) : rows.length ? [textTable(run, rows)] : [reason(NONE)];
    list.replaceChildren(...items);
    count.textContent = `${number(rows.length)} of ${number(answer.total)} training examples, the most suspect first`;
    more.hidden = rows.length >= Math.min(answer.total, MAX_SUSPECTS);
    if (!list.isConnected) card.show(body); // a failure took its place
    card.data(rows.map((row) => saved(run, row)));
    card.python(answer.python);
    mark(state.get());
  }
  return {element: card.element, show, busy: card.busy, fail: card.fail, update: mark};
}

function hintFor(run) {
  return run.cannot.mute ?? "Click examples to mute them, and ask what would be said without them.";
}

/** What is muted, at the foot of the page, and the way to what is said without it. */
export function suspectsTray(run) {
  const chips = el("div", {class: "row chips"}),
    hint = el("span", {class: "quiet-text"}, hintFor(run));
  const ask = button("Spotlight without them", () => state.set({page: "spotlight"}), {
    class: "primary",
    title: "What the model says of a test input without these examples",
    "data-test": "ask-without",
  });
  const back = button("Undo", undo, {title: "Undo the last muting (u)", "data-test": "undo-mute"});
  const none = button("Clear", clearAll, {"data-test": "clear-mute"});
  const sets = el("div", {class: "row"}, el("b", {}, "Mute"), hint, chips, ask);
  const undoing = el("span", {class: "row tray-undo"}, back, none);
  const bar = el("div", {class: "tray-bar"}, sets, canMute(run) ? undoing : "");
  const update = ({mute}) => {
    const some = mute.length > 0 && canMute(run);
    hint.hidden = some;
    chips.hidden = ask.hidden = none.disabled = !some;
    back.disabled = !canUndo();
    chips.replaceChildren(...(some ? mute.map((set) => chip(run, set)) : []));
  };
  return {element: el("div", {class: "tray", "data-test": "tray"}, bar), update};
}
