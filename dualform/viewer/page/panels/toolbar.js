// The buttons of a panel: help, Python, save, enlarge. What has nothing to give is not there.
//
//   const tools = toolbar({title, name, parts, enlarge: (button) => ...});
//   tools.data(rows); tools.python("memory.attend(...)"); tools.refresh();
import {el, svg} from "viewer/core/dom";
import {csv, json, savePicture, saveText} from "viewer/panels/save";

const ICONS = {
  enlarge: ["M10 3h7v7", "M17 3l-6 6", "M10 17H3v-7", "M3 17l6-6"],
  close: ["M4 4l12 12", "M16 4L4 16"],
  save: ["M10 3v10", "M6 9l4 4 4-4", "M4 17h12"],
  python: ["M7 5l-5 5 5 5", "M13 5l5 5-5 5"],
  help: ["M7.2 7.2a2.8 2.8 0 1 1 4 2.5c-.9.5-1.2 1-1.2 2", "M10 15v.2"],
};

const icon = (name) =>
  svg(
    "svg",
    {viewBox: "0 0 20 20", class: "icon", "aria-hidden": "true"},
    ICONS[name].map((d) => svg("path", {d})),
  );

/** Gives a button its icon and name. */
export function setIcon(button, name, label) {
  button.replaceChildren(icon(name));
  button.title = label;
  button.setAttribute("aria-label", label);
  return button;
}

const iconButton = (name, label) => setIcon(el("button", {type: "button", class: "icon-button"}), name, label);

/** `parts` are the panel's elements: toolbar, help, code, status and body. */
export function toolbar({title, name, parts, enlarge}) {
  const numbers = {rows: null};
  const help = opener("help", "What is this?", parts.help),
    code = opener("python", "Python code for this", parts.code);
  const menu = saveMenu(title, name, parts, numbers),
    larger = iconButton("enlarge", "Enlarge");
  larger.addEventListener("click", () => enlarge(larger));
  parts.toolbar.append(help, code, menu.element, larger);
  const refresh = () => {
    help.hidden = !parts.help.textContent;
    code.hidden = !parts.code.hasChildNodes();
    larger.hidden = !parts.body.hasChildNodes();
    menu.refresh();
  };
  const data = (rows) => {
    numbers.rows = rows ?? null;
    refresh();
  };
  const python = (text) => {
    parts.code.replaceChildren(...(text ? codeOf(text) : []));
    parts.code.hidden ||= !text;
    refresh();
  };
  refresh();
  return {refresh, data, python};
}

/** A button that shows and hides a part of the panel. */
function opener(name, label, part) {
  const button = iconButton(name, label);
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => {
    part.hidden = !part.hidden;
    button.setAttribute("aria-expanded", String(!part.hidden));
  });
  return button;
}

function saveMenu(title, name, parts, numbers) {
  const failed = (problem) => {
    parts.status.classList.add("failed");
    parts.status.textContent = `Could not be saved: ${problem.message}`;
  };
  const item = (text, save) =>
    el(
      "button",
      {
        type: "button",
        role: "menuitem",
        onclick: () => {
          menu.open = false;
          save().catch(failed);
        },
      },
      text,
    );
  const items = {
    svg: item("Figure (SVG)", () => savePicture(parts.body, title, name, "svg")),
    png: item("Figure (PNG)", () => savePicture(parts.body, title, name, "png")),
    csv: item("Numbers (CSV)", async () => saveText(`${name}.csv`, csv(numbers.rows), "text/csv")),
    json: item("Numbers (JSON)", async () => saveText(`${name}.json`, json(numbers.rows), "application/json")),
  };
  const button = setIcon(el("summary", {class: "icon-button"}), "save", "Save");
  const menu = el("details", {class: "menu"}, button, el("div", {role: "menu"}, Object.values(items)));
  menu.addEventListener("focusout", (event) => {
    if (!menu.contains(event.relatedTarget)) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => steer(event, menu, [button, ...Object.values(items)]));
  const refresh = () => {
    items.svg.hidden = !parts.body.querySelector("svg.chart");
    items.png.hidden = !parts.body.hasChildNodes();
    items.csv.hidden = items.json.hidden = numbers.rows === null;
    menu.hidden = items.png.hidden && items.csv.hidden;
  };
  return {element: menu, refresh};
}

/** Arrows go through an open menu; Escape closes it, and only it. */
function steer(event, menu, all) {
  const there = all.filter((item) => !item.hidden),
    by = {ArrowDown: 1, ArrowUp: -1}[event.key];
  if (!menu.open || (!by && event.key !== "Escape")) return;
  event.preventDefault();
  event.stopPropagation();
  if (by) there[(there.indexOf(document.activeElement) + by + there.length) % there.length].focus();
  else {
    menu.open = false;
    all[0].focus();
  }
}

function codeOf(text) {
  const copy = el("button", {type: "button", class: "quiet"}, "Copy"),
    code = el("code", {}, text);
  copy.addEventListener("click", async () => {
    copy.textContent = (await copied(text, code)) ? "Copied" : "Press Ctrl+C";
    setTimeout(() => {
      copy.textContent = "Copy";
    }, 1500);
  });
  return [el("pre", {tabindex: "0"}, code), copy];
}

/** A page opened as a file may have no clipboard: then the text is selected, for the keyboard. */
async function copied(text, code) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(code);
    return false;
  }
}
