// Updates the content whenever the server reports a change. Without this script, the page stays as it was loaded.
"use strict";
const live = document.getElementById("live");
const events = new EventSource("/events");
let shown = null;
let busy = false;
let again = false;

async function refresh() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    const answer = await fetch(location.href);
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const focused = document.activeElement && document.activeElement.getAttribute("href");
    document.getElementById("main").innerHTML = page.getElementById("main").innerHTML;
    if (focused) {
      const same = document.querySelector(`#main [href="${CSS.escape(focused)}"]`);
      if (same) same.focus({ preventScroll: true });
    }
    live.textContent = `live, as of ${new Date().toISOString().slice(11, 19)}Z`;
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
