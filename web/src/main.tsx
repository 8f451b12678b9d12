// Where the page begins.

import { createRoot } from "react-dom/client";
import { App } from "./shell/app";
import "./look/base.css";
import "./look/chat.css";
import "./look/markdown.css";
import "./look/views.css";

const root = document.getElementById("root");
if (root) createRoot(root).render(<App />);
