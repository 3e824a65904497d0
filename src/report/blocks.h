// What a page is made of. Plain structs: fill in the fields and add them to a Page or to Details.
// Nothing here knows what the numbers mean.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "report/cell.h"
#include "report/tokens.h"

namespace fwpkm::report {

// A heading, at which what follows begins. Pages with several have a table of contents.
struct Section {
  std::string title{};
  int level = 1;         // 1 or 2
  std::string anchor{};  // what stands after # in a link; made from the title if empty
};

struct Paragraph {
  std::string text{};
  bool note = false;  // set apart: what a reader has to know about the numbers near by
};

struct Settings {
  std::string caption{};
  std::vector<std::pair<std::string, Cell>> entries{};
};

struct Column {
  std::string name{};
  std::string format{};  // of its numbers
  bool sortable = true;  // by a click on its name
};

// Columns that hold numbers are set to the right. A wide table scrolls inside its box.
struct Table {
  std::string caption{};
  std::vector<Column> columns{};
  std::vector<std::vector<Cell>> rows{};  // each as long as columns
};

struct Axis {
  std::string label{};
  bool log = false;  // values that are not above 0 are left out then, and the page says how many
  std::string format{};
  // Where the axis ends, unless the data goes further. Without: where the data does.
  std::optional<double> low{}, high{};
};

// y over x, x ascending. NaN is a gap.
struct Series {
  std::string name{};
  std::vector<double> x{}, y{};
};

// A vertical line, such as the border of two documents.
struct Mark {
  double x = 0;
  std::string label{};
};

// Series with more than kCurvePoints points are thinned: the first, last, lowest and highest point
// of each stretch stay.
struct Curves {
  std::string title{};
  Axis x{}, y{};
  std::vector<Series> series{};
  std::vector<Mark> marks{};
};
inline constexpr size_t kCurvePoints = 4000;

// Groups that follow each other and have the same cluster stand together above its name.
struct BarGroup {
  std::string name{};
  std::string cluster{};
};

struct BarSeries {
  std::string name{};
  std::vector<double> values{};  // one for each group; NaN: no bar
};

struct Bars {
  std::string title{};
  std::string group_label{};  // what groups are, such as "layer"
  Axis y{};                   // never logarithmic
  std::vector<BarGroup> groups{};
  std::vector<BarSeries> series{};
  bool stacked = false;  // values must not be negative then
  bool ordered = false;  // series are steps of a scale, such as bins, and coloured so
};

struct HeatMap {
  std::string title{};
  std::string row_label{}, column_label{}, value_label{};
  std::vector<std::string> rows{}, columns{};
  std::vector<double> values{};  // row by row; NaN: an empty cell
  std::string format{};
  bool diverging = false;  // colours part at `center`
  double center = 0;
  // The ends of the colour scale; what lies beyond gets their colour. Without: where the data ends.
  std::optional<double> low{}, high{};
};

// Any JSON as a tree that folds.
struct Tree {
  std::string title{};
  nlohmann::json value{};
};

struct Details;

using Block = std::variant<Section, Paragraph, Settings, Table, Curves, Bars, HeatMap, Tokens, Tree,
                           std::shared_ptr<Details>>;

// Blocks that are folded away until somebody opens them.
struct Details {
  std::string summary{};
  bool open = false;
  std::vector<Block> blocks{};
};

// The block for page.js. Throws Error where lengths do not fit each other or a format is unknown.
nlohmann::json to_json(const Block& block);

// The points of a series that are drawn: their indices, ascending. Keeps the first, the last, the
// lowest and the highest of each stretch, and the ends of gaps; at most about `limit` of them.
std::vector<size_t> thin(const std::vector<double>& y, size_t limit);

}  // namespace fwpkm::report
