// antd's dialog, for `components/modal`.

export { Modal as default } from "antd";
