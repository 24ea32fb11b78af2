// The parts of ECharts that charts.mjs uses; esbuild bundles only these.
import { BarChart, CustomChart, LineChart } from "echarts/charts";
import {
  DataZoomInsideComponent, GridComponent, MarkLineComponent, TooltipComponent,
} from "echarts/components";
import { use } from "echarts/core";
import { CanvasRenderer } from "echarts/renderers";

use([
  BarChart, CustomChart, LineChart,
  DataZoomInsideComponent, GridComponent, MarkLineComponent, TooltipComponent, CanvasRenderer,
]);

export { init, version } from "echarts/core";
