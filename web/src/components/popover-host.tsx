// antd's popover, for `components/popover`.

export { Popover as default } from "antd";
