// A titled frame that can be enlarged and saved.
//
//   const totals = panel({title: "Attention per class", name: "totals", help: "What the bars are."});
//   totals.show(bars({...})); totals.data(rows); totals.python(answer.python); column.append(totals.element);
//
// Elements with the attribute data-not-saved are left out of saved figures, as are buttons and fields.
import {el} from "viewer/core/dom";
import {setIcon, toolbar} from "viewer/panels/toolbar";

const SPINNER_MS = 150; // before a spinner shows: most answers are faster

/** A <section class="panel"> and the functions that fill it. `body` is what it shows at first. */
export function panel({title, name = "panel", note = null, help = null, body = null}) {
  const parts = {
    toolbar: el("div", {class: "toolbar", role: "toolbar", "aria-label": `${title}: tools`}),
    note: el("p", {class: "muted-note", hidden: note === null}, note),
    help: el("p", {class: "panel-help", hidden: true}, help),
    code: el("div", {class: "panel-code", hidden: true}),
    status: el("p", {class: "panel-status", role: "status"}),
    body: el("div", {class: "panel-body"}),
  };
  const header = el("header", {}, el("h2", {}, title), parts.toolbar);
  const inner = el("div", {class: "panel-inner"}, header, parts.note, parts.help, parts.code, parts.status, parts.body);
  const element = el("section", {class: "panel", "aria-label": title, "data-name": name}, inner);
  const tools = toolbar({title, name, parts, enlarge: (button) => enlarge(element, inner, button)});
  const api = {element, ...filling(parts, tools), data: tools.data, python: tools.python};
  if (body) api.show(body);
  return api;
}

/** show, busy and fail: what stands in the body and above it. */
function filling({body, status}, tools) {
  let waiting = null;
  const say = (kind, text) => {
    clearTimeout(waiting);
    status.className = `panel-status ${kind}`;
    status.textContent = text;
    body.classList.toggle("waiting", kind === "busy");
    body.toggleAttribute("aria-busy", false);
  };
  const busy = (text) => {
    if (!text) {
      if (!status.classList.contains("failed")) say("", "");
      else clearTimeout(waiting);
      return;
    }
    clearTimeout(waiting);
    body.setAttribute("aria-busy", "true");
    waiting = setTimeout(() => {
      say("busy", text);
      body.setAttribute("aria-busy", "true");
    }, SPINNER_MS);
  };
  const fill = (nodes, kind, text) => {
    say(kind, text);
    body.replaceChildren(
      ...[nodes].flat(Infinity).filter((node) => node !== null && node !== undefined && node !== false),
    );
    tools.refresh();
  };
  return {
    show: (nodes) => fill(nodes, "", ""),
    busy,
    fail: (problem) => fill([], "failed", problem?.message ?? String(problem)),
  };
}

/** Moves the panel's inside into a dialog and, when that closes, back; the page below does not move. */
function enlarge(element, inner, button) {
  const open = inner.closest("dialog.enlarged");
  if (open) {
    open.close();
    return;
  }
  element.style.minHeight = `${element.offsetHeight}px`;
  const dialog = el("dialog", {class: "enlarged", "aria-label": element.getAttribute("aria-label")}, inner);
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("close", () => {
    element.append(inner);
    element.style.minHeight = "";
    dialog.remove();
    setIcon(button, "enlarge", "Enlarge").focus();
  });
  element.append(dialog); // inside the panel: it goes when the panel goes
  dialog.showModal();
  setIcon(button, "close", "Close (Esc)").focus();
}
