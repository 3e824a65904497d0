// One function for each kind of evaluation; draw.cpp has the table of them.
#pragma once

#include "report/draw.h"

namespace fwpkm::report {

void draw_niah(Page* page, std::span<const Result> results);
void draw_longbench(Page* page, std::span<const Result> results);

}  // namespace fwpkm::report
