// What a browser has laid out; layout.py has the page run these.
({
hidden: () => {
    const found = [];
    if (document.documentElement.scrollWidth > innerWidth) found.push(`the page: ${document.documentElement.scrollWidth} px`);
    const edge = document.documentElement.clientWidth + 1;
    for (const cell of document.querySelectorAll("td, th, h1, h2, p, dd, summary, svg, button, select, input"))
        if (cell.checkVisibility() && cell.getBoundingClientRect().right > edge) found.push(`${cell.localName} ${cell.textContent.slice(0, 40)}`);
    for (const box of document.querySelectorAll(".scroll"))
        if (box.scrollWidth > box.clientWidth) found.push(`table of ${box.textContent.slice(0, 40)}`);
    return found;
},

overlaps: () => {
    const found = [];
    const apart = (one, other) => Math.min(one.right, other.right) - Math.max(one.left, other.left) <= 1 ||
        Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) <= 2.5;  // ascenders into the line above
    const compare = (items) => {
        items.sort((one, other) => one.box.top - other.box.top);
        items.forEach((one, at) => {
            for (let next = at + 1; next < items.length && items[next].box.top < one.box.bottom; next++)
                if (!apart(one.box, items[next].box)) found.push(`${one.text} | ${items[next].text}`);
        });
    };
    for (const svg of document.querySelectorAll(".chart svg")) {
        const place = svg.closest(".chart").getBoundingClientRect();
        const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim() && getComputedStyle(text).opacity !== "0");
        const items = texts.map((text) => ({ text: text.textContent, box: text.getBoundingClientRect() })).filter(({ box }) => box.width);
        compare(items);
        for (const { text, box } of items)
            if (box.left < place.left - 1 || box.right > place.right + 1 || box.bottom > place.bottom + 1) found.push(`${text} is cut off`);
    }
    const words = [];
    const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode;
        if (!node.textContent.trim() || node.parentElement.closest("svg, script, select, .filters") || !node.parentElement.checkVisibility()) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        for (const box of range.getClientRects()) if (box.width > 1) words.push({ text: node.textContent.trim(), box });
    }
    compare(words);
    return found;
},

pale: () => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgb = (...colors) => {
        canvas.clearRect(0, 0, 1, 1);
        for (const color of colors) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const luminance = (color) => {
        const [r, g, b] = color.map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (element) => {
        const layers = [];
        for (let one = element; one; one = one.parentElement) layers.unshift(getComputedStyle(one).backgroundColor);
        return layers;
    };
    const found = new Set();
    for (const element of document.querySelectorAll("body *")) {
        if (element.closest("script, noscript, #vg-tooltip-element") || !element.checkVisibility()) continue;
        if (![...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
        const style = getComputedStyle(element);
        if (style.opacity === "0" || style.visibility === "hidden") continue;
        const back = behind(element);
        const [one, other] = [luminance(rgb(...back)), luminance(rgb(...back, element.closest("svg") ? style.fill : style.color))].sort((a, b) => b - a);
        const contrast = (one + 0.05) / (other + 0.05);
        if (contrast < 4.5) found.add(`${contrast.toFixed(2)}: ${element.localName} ${element.textContent.slice(0, 40)}`);
    }
    return [...found];
},
})
