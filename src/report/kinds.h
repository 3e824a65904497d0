// The drawing functions of draw.cpp's table, one for each kind of result.
#pragma once

#include <span>

#include "report/draw.h"

namespace fwpkm::report {

// Settings, models, data and version of a result, folded away.
void draw_about(Page* page, const Result& result);

void draw_ppl(Page* page, std::span<const Result> results);
void draw_ablate(Page* page, std::span<const Result> results);
void draw_recall(Page* page, std::span<const Result> results);
void draw_continual(Page* page, std::span<const Result> results);
void draw_niah(Page* page, std::span<const Result> results);
void draw_longbench(Page* page, std::span<const Result> results);

}  // namespace fwpkm::report
