// The first page: the run at a glance, and its test inputs, wrong ones first.
import {inReport} from "viewer/core/ask";
import {el} from "viewer/core/dom";
import {button} from "viewer/core/elements";
import {forgetListing} from "viewer/core/input_list";
import {jobs} from "viewer/core/jobs";
import {state} from "viewer/core/state";
import {trainingPanel} from "viewer/panels/accuracy";
import {certificatePanel, factsPanel, missingPanel} from "viewer/panels/facts";
import {inputsPanel} from "viewer/panels/inputs";
import {panel} from "viewer/panels/panel";

function toPrompt(run) {
  const words = el(
    "p",
    {},
    "This run is a language model: write a text, and see which training passages are behind each next token.",
  );
  const open = button("Ask with a prompt", () => state.set({page: "prompt"}), {class: "primary"});
  return panel({title: "Prompt", name: "prompt", body: [words, open]}).element;
}

export function show(container, run) {
  const facts = factsPanel(run),
    certificate = certificatePanel(run),
    training = trainingPanel(run),
    missing = missingPanel(run);
  const list = run.inputs && run.kind !== "text" ? inputsPanel(run) : null;
  container.replaceChildren(
    el(
      "div",
      {class: "glance"},
      facts.element,
      el("div", {class: "stack"}, certificate.element, missing?.element ?? ""),
      training.element,
    ),
    list?.element ?? (run.kind === "text" ? toPrompt(run) : ""),
  );
  // Outcomes are known once the model has been asked, which may be after the page was.
  let waits = list !== null && run.inputs.accuracy === null && !run.cannot.predict && !inReport;
  const stop = jobs.subscribe(({jobs: all}) => {
    if (!waits || !all.every((job) => job.done || job.failed)) return;
    waits = false;
    forgetListing();
    list.update(state.get(), true);
  });
  return {update: (now) => list?.update(now), close: () => [stop(), certificate.stop(), training.stop()]};
}
