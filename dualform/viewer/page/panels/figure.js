// What a panel shows, as one SVG that needs nothing else: styles written out, pictures inside, on the page's background.
//
//   const {text, width, height} = figure(body, "Attention per class");
//
// Charts are copied; pictures, texts, and boxes with a colour are set where they stand on the page.
import {el, svg} from "viewer/core/dom";

const EDGE = 16,
  FINE = 3; // white space around; how much finer than on the page a picture is
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
const PAINTED = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-linejoin",
  "stroke-linecap",
  "opacity",
];
const WRITTEN = ["font-size", "font-weight", "text-anchor", "paint-order"];
const PLAIN = {
  "fill-opacity": "1",
  stroke: "none",
  "stroke-dasharray": "none",
  "stroke-linejoin": "miter",
  "stroke-linecap": "butt",
  opacity: "1",
  "font-weight": "400",
  "text-anchor": "start",
  "paint-order": "normal",
};
const LEFT_OUT =
  ".hit, .starter, .crowded:not(.lit, .shown, .lit *), desc, input, select, textarea, label, button:not(.picture-box), [data-not-saved]";

const NOT_COPIED = /^(class|style|role|tabindex|visibility|data-.*|aria-.*)$/;

/** The contents of `body` as {text, width, height}. */
export function figure(body, title) {
  const origin = body.getBoundingClientRect(),
    nodes = [...body.childNodes].flatMap((node) => copied(node, origin));
  const width = Math.max(origin.width, body.scrollWidth) + 2 * EDGE,
    height = Math.max(origin.height, body.scrollHeight) + 2 * EDGE;
  const root = svg(
    "svg",
    {width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT},
    svg("title", {}, title),
    svg("rect", {width, height, ...paint("fill", background(body))}),
    svg("g", {transform: `translate(${EDGE} ${EDGE})`}, nodes),
  );
  root.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return {text: new XMLSerializer().serializeToString(root), width, height};
}

function background(element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (isVisible(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
}

const isVisible = (colour) =>
  colour && colour !== "transparent" && colour !== "none" && !/^rgba\(.*[,/] *0\)$/.test(colour);

/** A colour as attributes that old programs read too: no rgba(). */
function paint(name, colour) {
  const parts = /^rgba?\(([\d.]+)[, ]+([\d.]+)[, ]+([\d.]+)(?:[,/ ]+([\d.]+))?\)$/.exec(colour);
  if (!parts) return {[name]: colour};
  const hex = `#${parts
    .slice(1, 4)
    .map((part) => Math.round(Number(part)).toString(16).padStart(2, "0"))
    .join("")}`;
  return parts[4] === undefined || parts[4] === "1" ? {[name]: hex} : {[name]: hex, [`${name}-opacity`]: parts[4]};
}

/** A node of the page as nodes of an SVG. */
function copied(node, origin) {
  if (node.nodeType === Node.TEXT_NODE) return words(node, origin);
  if (node.nodeType !== Node.ELEMENT_NODE || node.matches(LEFT_OUT)) return [];
  const style = getComputedStyle(node),
    rect = node.getBoundingClientRect();
  if (style.display === "none" || style.visibility === "hidden" || !(rect.width * rect.height)) return [];
  const place = {x: rect.x - origin.x, y: rect.y - origin.y, width: rect.width, height: rect.height};
  if (node.localName === "svg")
    return [svg("svg", {...place, viewBox: node.getAttribute("viewBox")}, [...node.childNodes].map(styled))];
  if (node.localName === "img") return [...box(style, place), svg("image", {...place, href: inked(node, style)})];
  if (node.localName === "canvas") return [...box(style, place), svg("image", {...place, href: node.toDataURL()})];
  return [
    ...box(style, place),
    ...dot(node, place, origin),
    ...[...node.childNodes].flatMap((child) => copied(child, origin)),
  ];
}

/** The background and border of an element, if it has any. */
function box(style, {x, y, width, height}) {
  const border = parseFloat(style.borderTopWidth) || 0,
    line = border && style.borderTopStyle !== "none" && isVisible(style.borderTopColor);
  if (!isVisible(style.backgroundColor) && !line) return [];
  const half = line ? border / 2 : 0;
  const edge = line ? {...paint("stroke", style.borderTopColor), "stroke-width": border} : {};
  return [
    svg("rect", {
      x: x + half,
      y: y + half,
      width: width - 2 * half,
      height: height - 2 * half,
      rx: parseFloat(style.borderTopLeftRadius) || 0,
      ...paint("fill", isVisible(style.backgroundColor) ? style.backgroundColor : "none"),
      ...edge,
    }),
  ];
}

/** The small square of a class's colour, which has no element of its own. */
function dot(node, {y, height}, origin) {
  const style = getComputedStyle(node, "::before"),
    size = parseFloat(style.width),
    range = document.createRange();
  if (style.content !== '""' || !(size > 0) || !isVisible(style.backgroundColor)) return [];
  range.selectNodeContents(node);
  const x = range.getBoundingClientRect().x - origin.x - size - (parseFloat(style.marginRight) || 0);
  return [
    svg("rect", {
      x,
      y: y + (height - size) / 2,
      width: size,
      height: size,
      rx: 2,
      ...paint("fill", style.backgroundColor),
    }),
  ];
}

/** A text, line by line as the page breaks it. */
function words(node, origin) {
  if (!node.data.trim()) return [];
  const style = getComputedStyle(node.parentElement),
    range = document.createRange(),
    lines = [];
  if (style.visibility === "hidden") return [];
  [...node.data].reduce((at, letter) => {
    range.setStart(node, at);
    range.setEnd(node, at + letter.length);
    const rect = range.getClientRects()[0],
      last = lines.at(-1);
    if (rect?.width && last && Math.abs(last.rect.y - rect.y) < 2) last.text += letter;
    else if (rect?.width) lines.push({rect, text: letter});
    return at + letter.length;
  }, 0);
  return lines
    .filter((line) => line.text.trim())
    .map(({rect, text}) =>
      svg(
        "text",
        {
          x: rect.x - origin.x,
          y: rect.y - origin.y + rect.height * 0.78,
          "font-size": style.fontSize,
          "font-weight": style.fontWeight,
          ...(style.fontFamily.includes("mono") ? {"font-family": "ui-monospace, Menlo, Consolas, monospace"} : {}),
          ...paint("fill", style.color),
        },
        text.trim(),
      ),
    );
}

/** A copy of a part of a chart with its computed styles written out; null for what cannot be seen. */
function styled(node) {
  if (node.nodeType === Node.TEXT_NODE) return node.data;
  if (node.nodeType !== Node.ELEMENT_NODE || node.matches(LEFT_OUT)) return null;
  const style = getComputedStyle(node);
  if (style.display === "none" || style.visibility === "hidden" || style.opacity === "0") return null;
  const copy = svg(node.localName);
  for (const {name, value} of node.attributes) if (!NOT_COPIED.test(name)) copy.setAttribute(name, value);
  for (const name of {g: ["opacity"], text: [...PAINTED, ...WRITTEN]}[node.localName] ?? PAINTED) {
    const value = style.getPropertyValue(name),
      idle = name.startsWith("stroke-") && style.stroke === "none";
    if (value && value !== PLAIN[name] && !idle)
      for (const [key, v] of Object.entries(paint(name, value))) copy.setAttribute(key, v);
  }
  copy.append(...[...node.childNodes].map(styled).filter((child) => child !== null));
  return copy;
}

/** The picture as it looks in this theme, each pixel several times so that no program blurs it. */
function inked(image, style) {
  const times = Math.ceil((FINE * image.width) / image.naturalWidth) || 1;
  const canvas = el("canvas", {width: image.naturalWidth * times, height: image.naturalHeight * times}),
    context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  if (style.filter !== "none") context.filter = style.filter;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL();
}
