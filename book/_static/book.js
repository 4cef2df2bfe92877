// Reading marks, kept in this browser only, and a way for the keyboard into everything that scrolls sideways.
(() => {
  "use strict";

  const KEY = "residual-stream-duality.read";
  const nameOf = (href) => new URL(href, location.href).pathname.split("/").pop().replace(/\.html$/, "");
  const isChapter = (name) => /^ch\d\d-/.test(name);
  let fallback = [];

  const load = () => {
    try {
      const stored = JSON.parse(localStorage.getItem(KEY) || "[]");
      return new Set(Array.isArray(stored) ? stored : []);
    } catch {
      return new Set(fallback);
    }
  };

  const save = (read) => {
    fallback = [...read];
    try {
      localStorage.setItem(KEY, JSON.stringify(fallback));
    } catch {
      // Storage may be closed to pages opened from a file; the marks then last as long as the page.
    }
  };

  const chapterLinks = () =>
    [...document.querySelectorAll("nav.bd-links a[href], .bd-article table a[href]")].filter((a) => isChapter(nameOf(a.href)));

  const showMarks = () => {
    const read = load();
    for (const link of chapterLinks()) {
      const done = read.has(nameOf(link.href));
      link.classList.toggle("is-read", done);
      link.querySelector(".reading-note")?.remove();
      if (done) {
        const note = document.createElement("span");
        note.className = "reading-note";
        note.textContent = " (read)";
        link.append(note);
      }
    }
  };

  const addMarkButton = () => {
    const here = nameOf(location.href);
    const article = document.querySelector("article.bd-article");
    if (!article || !isChapter(here)) return;
    const all = new Set([...document.querySelectorAll("nav.bd-links a[href]")].map((a) => nameOf(a.href)).filter(isChapter));
    all.add(here);

    const bar = document.createElement("div");
    bar.className = "reading-mark";
    const button = document.createElement("button");
    button.type = "button";
    const count = document.createElement("span");
    count.setAttribute("aria-live", "polite");
    bar.append(button, count);

    const show = () => {
      const read = load();
      const done = read.has(here);
      button.setAttribute("aria-pressed", String(done));
      button.textContent = done ? "✓ Read" : "Mark this chapter as read";
      count.textContent = `${[...all].filter((name) => read.has(name)).length} of ${all.size} chapters read`;
      showMarks();
    };
    button.addEventListener("click", () => {
      const read = load();
      read.has(here) ? read.delete(here) : read.add(here);
      save(read);
      show();
    });
    article.append(bar);
    show();
  };

  // A region that scrolls sideways must be reachable without a mouse.
  const openToKeyboard = () => {
    const boxes = document.querySelectorAll(
      ".bd-article div.math, .bd-article pre, .bd-article .pst-scrollable-table-container"
    );
    for (const box of boxes) {
      const scrolls = box.scrollWidth > box.clientWidth + 1;
      if (scrolls && !box.hasAttribute("aria-label")) {
        box.tabIndex = 0;
        box.setAttribute("role", "region");
        const kind = box.matches("div.math") ? "equation" : box.matches("pre") ? "code" : "table";
        box.setAttribute("aria-label", `wide ${kind}, scrolls sideways`);
      }
    }
  };

  const start = () => {
    addMarkButton();
    showMarks();
    openToKeyboard();
    window.MathJax?.startup?.promise?.then(openToKeyboard);
    addEventListener("load", () => window.MathJax?.startup?.promise?.then(openToKeyboard));
    addEventListener("resize", openToKeyboard);
    // What a folded box holds has a width only once it is open.
    addEventListener("click", () => setTimeout(openToKeyboard, 50));
    addEventListener("storage", showMarks);
  };
  document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", start) : start();
})();
