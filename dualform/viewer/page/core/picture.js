// Pixels as pictures: ink on paper in the light theme, chalk on a board in the dark one.
//
//   picture(answer.pixels, run.image.shape, {size: 56, alt: "a handwritten 3", link: {id: 5}});
//
// Ink is black with the pixel's value as opacity, so that one drawing serves both themes (style.css inverts it).
import {el} from "viewer/core/dom";
import {link as tie} from "viewer/core/highlight";

const MAX_DRAWINGS = 4000; // kept; a page shows far fewer
const drawings = new Map();

function drawn(pixels, [height, width]) {
  const bytes = atob(pixels),
    canvas = el("canvas", {width, height}),
    context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i += 1) image.data[4 * i + 3] = bytes.charCodeAt(i) || 0;
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

/** The data URL of pixels (base64 of bytes, 0 for no ink). */
export function dataUrl(pixels, shape) {
  const key = `${shape.join("x")} ${pixels}`;
  if (!drawings.has(key)) {
    if (drawings.size >= MAX_DRAWINGS) drawings.delete(drawings.keys().next().value);
    drawings.set(key, drawn(pixels, shape));
  }
  return drawings.get(key);
}

/** A <figure> with the picture and, if there is one, a caption (text or nodes). With `onclick` it is a button. */
export function picture(
  pixels,
  shape,
  {size = 56, alt = "", caption = null, link = null, onclick = null, frame = null} = {},
) {
  const image = pixels
    ? el("img", {class: "ink", src: dataUrl(pixels, shape), alt, draggable: "false"})
    : el("span", {class: "no-picture", role: "img", "aria-label": alt || "no picture"}, "no picture");
  const box = onclick
    ? el("button", {type: "button", class: "picture-box", onclick})
    : el("span", {class: "picture-box"});
  box.append(image);
  box.style.setProperty("--size", `${size}px`);
  if (pixels && shape) box.style.setProperty("--shape", `${shape[1]} / ${shape[0]}`);
  if (frame) box.style.setProperty("--frame", frame);
  const figure = el(
    "figure",
    {class: frame ? "picture framed" : "picture"},
    box,
    caption !== null && el("figcaption", {}, caption),
  );
  return link ? tie(figure, link) : figure;
}
