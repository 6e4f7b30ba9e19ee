// Updates the content whenever the server reports a change, shows times in the reader's zone, and copies commands. Without this
// script, the page stays as it was loaded, and its times are in UTC.
"use strict";
const live = document.getElementById("live");
const main = document.getElementById("main");
const events = new EventSource("/events");
const TIME = /\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ/g;
let shown = null;
let busy = false;
let again = false;
let later = null;

function local(text) {
  const at = new Date(text.replace(" ", "T"));
  const two = (value) => String(value).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

function improve() {
  const texts = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (text.data.search(TIME) < 0 || text.parentElement.closest("code, h1, h2, h3, th, .location, #charts, #configuration ~ dl")) continue;
    text.parentElement.title = text.data.trim();
    text.data = text.data.replace(TIME, local);
  }
  for (const code of main.querySelectorAll("code.command")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.setAttribute("aria-label", `Copy ${code.textContent}`);
    button.addEventListener("click", () => copy(code, button));
    code.after(button);
  }
}

async function copy(code, button) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch (problem) { // without TLS, a browser lets no page write there
    getSelection().selectAllChildren(code);
    button.textContent = "Selected";
  }
}

async function refresh() {
  if (busy) { again = true; return; }
  const selected = getSelection();
  if (!selected.isCollapsed && main.contains(selected.anchorNode)) { // someone is about to copy it
    later ??= setTimeout(() => { later = null; refresh(); }, 1000);
    return;
  }
  busy = true;
  try {
    const answer = await fetch(location.href);
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const active = document.activeElement;
    const focused = ["href", "aria-label"].find((name) => main.contains(active) && active.hasAttribute(name));
    const known = focused && `#main [${focused}="${CSS.escape(active.getAttribute(focused))}"]`;
    const charts = document.getElementById("charts");
    main.innerHTML = page.getElementById("main").innerHTML;
    const place = document.getElementById("charts");
    if (charts && place) place.replaceWith(charts);
    improve();
    const same = known && document.querySelector(known);
    if (same) same.focus({ preventScroll: true });
    document.dispatchEvent(new Event("refreshed"));
    live.textContent = `live, as of ${new Date().toTimeString().slice(0, 8)}`;
  } catch (problem) {
    live.textContent = "not live: reload the page to see why";
  }
  busy = false;
  if (again) { again = false; refresh(); }
}

events.onmessage = (event) => {
  if (shown !== null && event.data !== shown) refresh();
  else live.textContent = "live";
  shown = event.data;
};
events.onerror = () => { live.textContent = "the server can't be reached"; };
document.getElementById("zone").textContent = `Times are in the time zone of this browser, ${Intl.DateTimeFormat().resolvedOptions().timeZone}.`;
improve();
