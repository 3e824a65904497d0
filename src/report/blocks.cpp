#include "report/blocks.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace fwpkm::report {
namespace {

using Json = nlohmann::json;

Json numbers(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) {
    list.push_back(number(value));
  }
  return list;
}

Json optional_number(const std::optional<double>& value) {
  return value ? number(*value) : Json(nullptr);
}

Json axis_json(const Axis& axis) {
  check_format(axis.format);
  return {{"label", axis.label},
          {"log", axis.log},
          {"format", axis.format},
          {"low", optional_number(axis.low)},
          {"high", optional_number(axis.high)}};
}

Json block_json(const Section& b) {
  require(b.level == 1 || b.level == 2, "report", "section '{}' has level {}; it must be 1 or 2",
          b.title, b.level);
  return {{"kind", "section"}, {"title", b.title}, {"level", b.level}, {"anchor", b.anchor}};
}

Json block_json(const Paragraph& b) {
  return {{"kind", "paragraph"}, {"text", b.text}, {"note", b.note}};
}

Json block_json(const Settings& b) {
  Json entries = Json::array();
  for (const auto& [key, value] : b.entries) {
    entries.push_back({key, value.json()});
  }
  return {{"kind", "settings"}, {"caption", b.caption}, {"entries", entries}};
}

Json block_json(const Table& b) {
  Json columns = Json::array();
  for (const Column& column : b.columns) {
    check_format(column.format);
    columns.push_back(
        {{"name", column.name}, {"format", column.format}, {"sortable", column.sortable}});
  }
  Json rows = Json::array();
  for (const auto& row : b.rows) {
    require(row.size() == b.columns.size(), "report",
            "row {} of table '{}' has {} cells; the table has {} columns", rows.size(), b.caption,
            row.size(), b.columns.size());
    Json cells = Json::array();
    for (const Cell& cell : row) {
      cells.push_back(cell.json());
    }
    rows.push_back(std::move(cells));
  }
  return {{"kind", "table"}, {"caption", b.caption}, {"columns", columns}, {"rows", rows}};
}

Json block_json(const Curves& b) {
  Json series = Json::array();
  for (const Series& s : b.series) {
    require(s.x.size() == s.y.size(), "report", "series '{}' of '{}' has {} x and {} y", s.name,
            b.title, s.x.size(), s.y.size());
    for (size_t i = 0; i < s.x.size(); ++i) {
      require(std::isfinite(s.x[i]) && (i == 0 || s.x[i - 1] <= s.x[i]), "report",
              "series '{}' of '{}': x must ascend, but x[{}] is {}", s.name, b.title, i, s.x[i]);
    }
    Json x = Json::array(), y = Json::array();
    for (const size_t i : thin(s.y, kCurvePoints)) {
      x.push_back(s.x[i]);
      y.push_back(number(s.y[i]));
    }
    series.push_back({{"name", s.name}, {"x", x}, {"y", y}, {"points", s.x.size()}});
  }
  Json marks = Json::array();
  for (const Mark& mark : b.marks) {
    marks.push_back({{"x", number(mark.x)}, {"label", mark.label}});
  }
  return {{"kind", "curves"},    {"title", b.title}, {"x", axis_json(b.x)},
          {"y", axis_json(b.y)}, {"series", series}, {"marks", marks}};
}

Json block_json(const Bars& b) {
  require(!b.y.log, "report", "bars '{}' cannot have a logarithmic axis", b.title);
  Json groups = Json::array();
  for (const BarGroup& group : b.groups) {
    groups.push_back({{"name", group.name}, {"cluster", group.cluster}});
  }
  Json series = Json::array();
  for (const BarSeries& s : b.series) {
    require(s.values.size() == b.groups.size(), "report",
            "series '{}' of bars '{}' has {} values for {} groups", s.name, b.title,
            s.values.size(), b.groups.size());
    const auto negative = std::find_if(s.values.begin(), s.values.end(),
                                       [&](double value) { return b.stacked && value < 0; });
    require(negative == s.values.end(), "report",
            "stacked bars '{}' have a negative value in '{}'; stack only what adds up", b.title,
            s.name);
    series.push_back({{"name", s.name}, {"values", numbers(s.values)}});
  }
  return {{"kind", "bars"},       {"title", b.title},    {"group_label", b.group_label},
          {"y", axis_json(b.y)},  {"groups", groups},    {"series", series},
          {"stacked", b.stacked}, {"ordered", b.ordered}};
}

Json block_json(const HeatMap& b) {
  check_format(b.format);
  require(b.values.size() == b.rows.size() * b.columns.size(), "report",
          "heat map '{}' has {} values for {} rows of {} columns", b.title, b.values.size(),
          b.rows.size(), b.columns.size());
  return {{"kind", "heatmap"},
          {"title", b.title},
          {"row_label", b.row_label},
          {"column_label", b.column_label},
          {"value_label", b.value_label},
          {"rows", b.rows},
          {"columns", b.columns},
          {"values", numbers(b.values)},
          {"format", b.format},
          {"diverging", b.diverging},
          {"center", number(b.center)},
          {"low", optional_number(b.low)},
          {"high", optional_number(b.high)}};
}

Json block_json(const Tokens& b) {
  return to_json(b);
}

Json block_json(const Tree& b) {
  return {{"kind", "tree"}, {"title", b.title}, {"value", b.value}};
}

Json block_json(const std::shared_ptr<Details>& b) {
  Json blocks = Json::array();
  for (const Block& block : b->blocks) {
    blocks.push_back(to_json(block));
  }
  return {{"kind", "details"}, {"summary", b->summary}, {"open", b->open}, {"blocks", blocks}};
}

}  // namespace

Json number(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  return std::isinf(value) ? Json(value > 0 ? "inf" : "-inf") : Json(value);
}

void check_format(std::string_view format) {
  std::string_view rest = format;
  bool ok = rest.empty() || rest == "0";
  if (rest.size() >= 2 && rest.front() == '.' && rest[1] >= '0' && rest[1] <= '9') {
    ok = rest.size() == 2 || (rest.size() == 3 && rest[2] == '%');
  }
  require(ok, "report", "number format '{}' is unknown; use \"\", \"0\", \".3\" or \".1%\"",
          format);
}

std::vector<size_t> thin(const std::vector<double>& y, size_t limit) {
  std::vector<size_t> kept;
  if (y.size() <= limit) {
    for (size_t i = 0; i < y.size(); ++i) {
      kept.push_back(i);
    }
    return kept;
  }
  constexpr size_t kPerStretch = 5;  // first, last, lowest, highest, a gap
  const size_t stretches = std::max<size_t>(1, limit / kPerStretch);
  for (size_t s = 0; s < stretches; ++s) {
    const size_t from = s * y.size() / stretches, to = (s + 1) * y.size() / stretches;
    if (from == to) {
      continue;
    }
    size_t low = from, high = from, gap = to;
    for (size_t i = from; i < to; ++i) {
      if (!std::isfinite(y[i])) {
        gap = i;
        continue;
      }
      low = !std::isfinite(y[low]) || y[i] < y[low] ? i : low;
      high = !std::isfinite(y[high]) || y[i] > y[high] ? i : high;
    }
    std::vector<size_t> some = {from, to - 1, low, high};
    if (gap < to) {
      some.push_back(gap);
    }
    std::sort(some.begin(), some.end());
    some.erase(std::unique(some.begin(), some.end()), some.end());
    kept.insert(kept.end(), some.begin(), some.end());
  }
  return kept;
}

Json to_json(const Block& block) {
  return std::visit([](const auto& b) { return block_json(b); }, block);
}

}  // namespace fwpkm::report
