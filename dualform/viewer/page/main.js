// Starts the page: reads the run, fills the head, and shows the page that the address names.
import {ask, inReport, onLost} from "viewer/core/ask";
import {el} from "viewer/core/dom";
import {jobs} from "viewer/core/jobs";
import {listen} from "viewer/core/keyboard";
import {state} from "viewer/core/state";
import * as home from "viewer/pages/home";
import * as spotlight from "viewer/pages/spotlight";
import * as suspects from "viewer/pages/suspects";
import {fillHeader} from "viewer/panels/header";

const container = document.getElementById("main");
let shown = {name: null, page: null};

function pageName(now, pages) {
  if (now.page in pages) return now.page;
  return "prompt" in pages && now.page === "spotlight" ? "prompt" : "home";
}

function render(run, pages, now, before) {
  const name = pageName(now, pages);
  if (name !== shown.name) {
    shown.page?.close();
    container.replaceChildren();
    container.dataset.page = name;
    scrollTo(0, 0);
    shown = {name, page: pages[name].show(container, run)};
  }
  shown.page.update(now, before);
}

// Shown while the server does not answer; it goes away with the next answer.
function watchServer(path) {
  const command = el("code", {}, `dualform view ${path}`);
  const notice = el("p", {class: "notice", "data-test": "lost"}, "The server has stopped. Start it again: ", command);
  const place = document.getElementById("notices");
  onLost((lost) => {
    if (lost !== place.contains(notice)) place.replaceChildren(...(lost ? [notice] : []));
  });
}

function explain(error) {
  container.replaceChildren(el("p", {class: "notice"}, error.message));
}

async function start() {
  const run = await ask("run");
  const pages = inReport ? {home, spotlight} : {home, spotlight, suspects};
  if (run.kind === "text") {
    delete pages.spotlight;
    delete pages.suspects;
    pages.prompt = await import("viewer/pages/prompt");
  }
  document.title = `${run.name} · dualform`;
  watchServer(run.path);
  fillHeader(document.getElementById("header"), run);
  listen(run);
  state.subscribe((now, before) => render(run, pages, now, before));
  render(run, pages, state.get(), null);
  jobs.start();
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address holds the state, and is no place for an anchor
  container.focus();
});
start().catch(explain);
