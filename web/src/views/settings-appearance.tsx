// Settings › Appearance: theme, density and single-key shortcuts of this browser.

import { Segmented, Switch } from "antd";
import { type Preferences, THEME_MODES, THEME_NAMES, updatePreferences, usePreferences } from "../state/preferences";

const DENSITIES: { value: Preferences["density"]; label: string }[] = [
  { value: "comfortable", label: "Comfortable" },
  { value: "compact", label: "Compact" },
];

export default function AppearanceSettings() {
  const { theme, density, singleKeys } = usePreferences();
  return (
    <div className="panel stack">
      <div className="setting">
        <div>
          <strong id="theme">Theme</strong>
          <p className="muted">System follows the setting of your device.</p>
        </div>
        <Segmented
          aria-labelledby="theme"
          value={theme}
          onChange={(mode) => updatePreferences({ theme: mode })}
          options={THEME_MODES.map((value) => ({ value, label: THEME_NAMES[value] }))}
        />
      </div>
      <div className="setting">
        <div>
          <strong id="density">Density</strong>
          <p className="muted">Compact shows more rows of lists and tables.</p>
        </div>
        <Segmented
          aria-labelledby="density"
          value={density}
          onChange={(value) => updatePreferences({ density: value })}
          options={DENSITIES}
        />
      </div>
      <div className="setting">
        <div>
          <strong id="single-keys">Single-key shortcuts</strong>
          <p className="muted">
            Keys such as <kbd>?</kbd>, <kbd>y</kbd> and <kbd>n</kbd> act outside of text fields.
          </p>
        </div>
        <Switch
          aria-labelledby="single-keys"
          checked={singleKeys}
          onChange={(checked) => updatePreferences({ singleKeys: checked })}
        />
      </div>
      <p className="muted">These settings apply to this browser.</p>
    </div>
  );
}
