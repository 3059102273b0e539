// Elements of the page, made and changed.
//
//   el("p", {class: "muted-note"}, "step ", el("b", {}, "12"))
const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "open"]);

function put(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on") && typeof value === "function") element.addEventListener(name.slice(2), value);
  else if (name === "style") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
  else if (PROPERTIES.has(name) && name in element) element[name] = value;
  else element.setAttribute(name, value === true ? "" : value);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) put(element, name, value);
  for (const child of children.flat(Infinity))
    if (child !== null && child !== undefined && child !== false) element.append(child);
  return element;
}

/** Sets attributes of an element that is there already. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** An element with attributes (class, title, data-*, aria-*, on… functions, style as an object) and children. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same in the SVG namespace. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}
