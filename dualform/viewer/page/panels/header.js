// The head of every page: which run this is, how exact it is, what is being prepared, and where to go.
import {inReport} from "viewer/core/ask";
import {el} from "viewer/core/dom";
import {button} from "viewer/core/elements";
import {number} from "viewer/core/format";
import {jobs} from "viewer/core/jobs";
import {helpDialog} from "viewer/core/keyboard";
import {state} from "viewer/core/state";
import {themeButton} from "viewer/core/theme";

const NEEDS_VALUES = "Only a run that holds keys and values can be checked against the trained weights";
const CERTIFICATE = "certificate";

/** The certificate in a few words: {text, kind: ok | bad | busy | none, title}. */
export function certificateWords(run, answer) {
  const {certificate} = answer ?? {};
  if (certificate) return measured(certificate);
  const job = answer?.jobs.find(({name}) => name === CERTIFICATE);
  if (job?.failed) return {text: "no certificate", kind: "none", title: job.failed};
  if (!answer || (job && !job.done)) return measuring(job?.share);
  const text = /values/.test(run.stored ?? "") ? "no certificate" : "keys only: no certificate";
  return {text, kind: "none", title: NEEDS_VALUES};
}

function measuring(share) {
  const part = share ? ` ${Math.round(100 * share)}%` : "";
  return {text: `measuring …${part}`, kind: "busy", title: "How exact the run is, is being measured"};
}

function measured({status, headline, keys_only: keysOnly, moved, relative_error: error}) {
  if (keysOnly) return {text: "keys only: no certificate", kind: "none", title: NEEDS_VALUES};
  if (status === "not certifiable") return {text: "not certifiable", kind: "none", title: headline};
  const [first] = Object.keys(moved ?? {});
  const wrong = first === undefined ? `error ${number(error)}` : `${first} moved by other means`;
  const text = status === "exact" ? `dual = primal to ${number(error)}` : `not exact: ${wrong}`;
  return {text, kind: status === "exact" ? "ok" : "bad", title: headline};
}

/** How much of the model all of this is about. */
function coverageText({coverage}) {
  if (!coverage) return "";
  const share = coverage.attributed === 1 ? "the whole model" : `${coverage.text.split(" ")[0]} of the model`;
  return el("span", {class: "quiet-text", title: coverage.text, "data-test": "coverage"}, share);
}

/** A badge that keeps itself up to date. */
export function certificateBadge(run, test = CERTIFICATE) {
  const badge = el("span", {class: "badge busy", "data-test": test});
  const show = (answer) => {
    const {text, kind, title} = certificateWords(run, answer);
    badge.className = kind === "none" ? "badge" : `badge ${kind}`;
    badge.textContent = text;
    badge.title = title;
  };
  show(null);
  return {element: badge, stop: jobs.subscribe(show)};
}

function progress() {
  const text = el("span", {class: "progress-text"});
  const fill = el("span", {class: "progress-fill"});
  const line = el("div", {class: "progress", hidden: true}, fill);
  jobs.subscribe(({jobs: all}) => {
    const open = all.filter((job) => !job.done && !job.failed);
    const job = open.find(({share}) => share !== null) ?? open[0];
    text.textContent = job ? `${job.what} …` : "";
    text.title = open.map(({what}) => what).join("\n");
    line.hidden = !job;
    fill.style.width = `${100 * (job?.share ?? 0)}%`;
  });
  return {text, line};
}

function navigation(run) {
  const others = [["spotlight", "Spotlight"], ...(inReport ? [] : [["suspects", "Suspects"]])];
  const pages = [["home", "Run"], ...(run.kind === "text" ? [["prompt", "Prompt"]] : others)];
  const buttons = pages.map(([page, text]) => button(text, () => state.set({page}), {class: "nav", "data-page": page}));
  const mark = (now) => {
    for (const item of buttons) {
      if (item.dataset.page === now.page) item.setAttribute("aria-current", "page");
      else item.removeAttribute("aria-current");
    }
  };
  state.subscribe(mark);
  mark(state.get());
  return el("nav", {"aria-label": "Pages"}, buttons);
}

export function fillHeader(header, run) {
  const {text, line} = progress();
  const layers = `${run.layers.length} ${run.layers.length === 1 ? "layer" : "layers"}`;
  const name = button(run.name, () => state.set({page: "home"}), {class: "run-name", title: run.path});
  const help = button("?", helpDialog, {
    class: "icon-text",
    title: "Keyboard (?)",
    "aria-label": "Keyboard shortcuts",
    "data-test": "help",
  });
  header.replaceChildren(
    name,
    el("span", {class: "quiet-text"}, layers),
    coverageText(run),
    certificateBadge(run).element,
    inReport
      ? el("span", {class: "badge", title: "The answers are inside this file; no server is needed"}, "report")
      : "",
    navigation(run),
    text,
    themeButton(),
    help,
    line,
  );
}
