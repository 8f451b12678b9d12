// Entry point: renders the app into #root.

import { createRoot } from "react-dom/client";
import "virtual:antd.css";
import { App } from "./layout/app";
import "./styles/base.css";
import "./styles/chat.css";
import "./styles/markdown.css";
import "./styles/setup.css";
import "./styles/views.css";

const root = document.getElementById("root");
if (root) createRoot(root).render(<App />);
