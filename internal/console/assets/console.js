// The pages work without this script. It shows times in the viewer's zone, keeps the overview live and draws the charts.
"use strict";

const hour = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "numeric", minute: "2-digit" });
const zone = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

function localTimes(within) {
  for (const time of within.querySelectorAll("time:not([title])")) {
    const at = new Date(time.dateTime);
    time.title = time.textContent;
    if ("hour" in time.dataset) time.textContent = hour.format(at);
    else time.textContent = at.toDateString() === new Date().toDateString() ? at.toLocaleTimeString() : zone.format(at);
    if ("since" in time.dataset) {
      const ago = document.createElement("span");
      time.after(ago);
      tellAgo(time);
    }
  }
}

// tellAgo says behind a time how long ago it was.
function tellAgo(time) {
  const seconds = Math.max(0, Math.round((Date.now() - new Date(time.dateTime)) / 1000));
  const [n, unit] = seconds < 60 ? [seconds, "s"] : seconds < 3600 ? [Math.floor(seconds / 60), "min"] : seconds < 172800 ? [Math.floor(seconds / 3600), "h"] : [Math.floor(seconds / 86400), "days"];
  time.nextElementSibling.textContent = ` (${n} ${unit} ago)`;
}

setInterval(() => document.querySelectorAll("time[data-since][title]").forEach(tellAgo), 1000);

// grow greys what was found too long ago to be said of now.
function grow() {
  for (const one of document.querySelectorAll("[data-old]")) one.classList.toggle("old", Date.now() - new Date(one.querySelector("time").dateTime) > 15000);
}

// update makes an element's content that of a piece of HTML, and keeps what stays: the focus, a selection, what is being pressed.
function update(element, html) {
  const next = element.cloneNode(false);
  next.innerHTML = html;
  localTimes(next);
  showCopies(next);
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const what = focused && identity(focused);
  morph(element, next);
  if (!focused || focused === element || focused === document.activeElement && identity(focused) === what) return;
  const same = [...element.querySelectorAll("a, button, [tabindex]")].find((one) => identity(one) === what);
  if (!same && !element.hasAttribute("tabindex")) element.tabIndex = -1; // the next Tab goes on from here
  (same || element).focus({ preventScroll: true });
}

// identity is what a link or button is for, wherever it stands.
function identity(element) {
  return [element.tagName, element.getAttribute("href"), element.getAttribute("aria-label"), "copy" in element.dataset ? element.previousElementSibling?.textContent : element.textContent].join("\n");
}

// morph changes the children of an element into those of another one, and keeps each that has a counterpart.
function morph(old, next) {
  const wanted = [...next.childNodes];
  wanted.forEach((child, i) => {
    const now = old.childNodes[i];
    if (!now) old.append(child);
    else if (now.nodeType !== child.nodeType || now.nodeName !== child.nodeName) now.replaceWith(child);
    else if (now.nodeType !== Node.ELEMENT_NODE) {
      if (now.data !== child.data) now.data = child.data;
    } else if (!now.isEqualNode(child)) {
      for (const { name } of [...now.attributes]) if (!child.hasAttribute(name)) now.removeAttribute(name);
      for (const { name, value } of child.attributes) if (now.getAttribute(name) !== value) now.setAttribute(name, value);
      morph(now, child);
    }
  });
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

// live updates the elements of the overview that changed.
function live() {
  const status = document.querySelector("[data-live]");
  if (!status) return;
  const events = new EventSource(status.dataset.live);
  let last = Date.now(), first = true;
  status.hidden = false;
  status.textContent = "Connecting …";
  events.onmessage = (message) => {
    last = Date.now();
    const changed = JSON.parse(message.data);
    if (first && [...document.querySelectorAll("[id^=row-]")].some((row) => !(row.id in changed))) {
      location.reload(); // the first message has all rows, and the page shows one that is gone
      return;
    }
    first = false;
    for (const [id, html] of Object.entries(changed)) {
      const element = document.getElementById(id);
      if (element && html !== null) {
        update(element, html);
      } else if (element || id.startsWith("row-")) {
        location.reload(); // pipelines come and go with the process only
        return;
      }
    }
  };
  events.onopen = () => {
    first = true;
    status.classList.remove("lost");
    status.textContent = "Live";
    document.querySelector(".at")?.remove();
  };
  events.onerror = async () => {
    status.classList.add("lost");
    const of = "the figures are of " + new Date(last).toLocaleTimeString() + ". ";
    status.textContent = "The relay does not answer; " + of + "Trying again …";
    if (events.readyState !== EventSource.CLOSED) return; // it tries again by itself
    const answer = await fetch(location.href, { method: "HEAD" }).catch(() => null);
    if (answer?.status === 401) {
      const login = document.createElement("a");
      login.href = "login?ended=1";
      login.textContent = "Log in again";
      status.replaceChildren("The session is over; " + of, login);
      return;
    }
    setTimeout(live, 5000);
  };
}

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });

const plots = [
  { title: "Delivered per second", unit: "events a second", lines: [["per second", "per_second", "--series"]] },
  { title: "Pending events", unit: "events", lines: [["pending", "pending", "--series"]] },
  { title: "Oldest pending event", unit: "seconds", lines: [["oldest", "oldest", "--series"]] },
  { title: "Commit to sink", unit: "seconds", lines: [["p50", "p50", "--series"], ["p99", "p99", "--warn"]] },
];

let span = "hour";

// charts draws the history of a pipeline or sink, again every ten seconds. The switch of the first section is that of all.
function charts(section, number) {
  const place = section.querySelector(".plots");
  let drawn = [];
  if (number === 0) section.querySelector("[data-span]").parentElement.hidden = false;
  async function draw() {
    const url = new URL(section.dataset.history, location.href);
    url.searchParams.set("span", span);
    const response = await fetch(url);
    if (!response.ok) return;
    const history = await response.json();
    const times = history.per_second.map((_, i) => history.from + i * history.step);
    drawn.forEach((plot) => plot.destroy());
    place.textContent = "";
    const figures = plots.map(({ title }) => { // all of them, before one is measured
      const figure = document.createElement("figure"), caption = document.createElement("figcaption");
      caption.textContent = title;
      figure.append(caption);
      place.append(figure);
      return figure;
    });
    drawn = plots.map(({ unit, lines }, i) => {
      const figure = figures[i];
      const labels = "11px system-ui, sans-serif";
      const axis = { stroke: style("--soft"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line"), width: 1 } };
      return new uPlot({
        width: Math.max(260, figure.clientWidth), height: 180,
        scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 1.05] } },
        axes: [{ ...axis, space: 76, values: (_, splits) => splits.map((at) => clock.format(at * 1000)) }, { ...axis, size: 60, label: unit, labelSize: 16, labelFont: labels }],
        series: [{}, ...lines.map(([label, , colour]) => ({ label, stroke: style(colour), width: 1.5, points: { show: true, size: 3 } }))],
      }, [times, ...lines.map(([, key]) => history[key])], figure);
    });
  }
  draw();
  setInterval(draw, 10000);
  addEventListener("resize", draw);
  addEventListener("span", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

for (const button of document.querySelectorAll("[data-span]")) {
  button.addEventListener("click", () => {
    span = button.dataset.span;
    document.querySelectorAll("[data-span]").forEach((other) => other.setAttribute("aria-pressed", String(other.dataset.span === span)));
    dispatchEvent(new Event("span"));
  });
}

// selectAll lets one checkbox select all that a list shows.
function selectAll(box) {
  box.hidden = false;
  box.addEventListener("change", () => {
    for (const one of box.form.querySelectorAll("[name=chosen]")) one.checked = box.checked;
  });
}

// copies lets a button copy the text before it. Without a secure context, which the clipboard's interface needs, the selected text is copied.
async function copies(text, button) {
  try {
    await navigator.clipboard.writeText(text.textContent);
  } catch {
    getSelection().selectAllChildren(text);
    if (!document.execCommand("copy")) return; // it is selected
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (button) copies(button.previousElementSibling, button);
});

function showCopies(within) {
  for (const button of within.querySelectorAll("[data-copy]")) button.hidden = false;
}

// sideways says of a table that is wider than its place that it can be scrolled; the shadow alone is easily missed on a phone.
function sideways() {
  for (const place of document.querySelectorAll("[data-sideways]")) {
    let caption = place.querySelector(".sideways");
    const hidden = place.scrollWidth - place.clientWidth;
    if (!caption && hidden > 0) {
      caption = document.createElement("small");
      caption.className = "sideways hint";
      place.querySelector("caption")?.append(caption);
    }
    if (caption) caption.textContent = hidden > 0 ? "more to the right →" : "";
  }
}

localTimes(document);
showCopies(document);
sideways();
addEventListener("resize", sideways);
live();
grow();
setInterval(grow, 1000);
document.querySelectorAll("[data-history]").forEach(charts);
document.querySelectorAll("[data-all]").forEach(selectAll);
