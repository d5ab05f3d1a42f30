"use strict";
document.getElementById("top").append(element("h1", {}, report.title));
