#include "model/fast_state.h"

#include "memory/gpu_rows.h"
#include "model/parameters.h"
#include "ops/fwpkm/written.h"

namespace fwpkm {

FwpkmSettings fwpkm_settings(const ModelConfig& c) {
  FwpkmSettings s;
  s.heads = static_cast<int32_t>(c.fwpkm.heads);
  s.topk = static_cast<int32_t>(c.fwpkm.topk);
  s.n_subkeys = static_cast<int32_t>(c.fwpkm.n_subkeys);
  s.lookahead = static_cast<int32_t>(c.fwpkm.lookahead);
  s.chunk = c.fwpkm.chunk;
  s.bptt_chunks = c.bptt_chunks;
  switch (c.value_step.kind) {
    case ValueStep::Kind::kSlots:
      s.step = static_cast<double>(c.fwpkm.heads * c.fwpkm.topk);
      break;
    case ValueStep::Kind::kPaper:
      s.step = 1;
      break;
    case ValueStep::Kind::kRewrite:
      s.rewrite = true;
      break;
    case ValueStep::Kind::kNumber:
      s.step = c.value_step.number;
      break;
  }
  s.addr_weight = c.fwpkm.addr_weight;
  s.dot = c.fwpkm.score == Score::kDot;
  s.addr_loss = c.fwpkm.addr_loss;
  s.official = s.late_values = c.compat == Compat::kOfficial;
  s.shared = c.memory == MemoryMode::kShared;
  return s;
}

FastMlpSettings fwmlp_settings(const ModelConfig& c) {
  FastMlpSettings s;
  s.chunk = c.fwmlp.chunk;
  s.lookahead = c.fwmlp.lookahead;
  s.mean_target = s.late_weights = c.compat == Compat::kOfficial;
  s.lr = c.fwmlp.lr;
  s.bptt_chunks = c.bptt_chunks;
  return s;
}

void put_rows(const FwpkmResult& result, Overlay* overlay) {
  if (result.rows.view().device == DeviceKind::kCuda) {
    // The host gives rows their places, the GPU moves them.
    std::vector<gpu_rows::Move> moves;
    for_writes(result, [&](int64_t owner, int32_t slot, int32_t row) {
      moves.push_back({row, overlay->renew(owner, slot)});
    });
    if (!moves.empty()) {
      gpu_rows::copy(result.rows.view().data, overlay->arena()->row(0), overlay->row_bytes(),
                     moves);
    }
    overlay->send();
    return;
  }
  for_written(result, [&](int64_t owner, int32_t slot, const std::byte* row, size_t) {
    overlay->put(owner, slot, row);
  });
}

void commit(std::span<const MemoryRecord> records, const ModelConfig& config,
            Parameters* parameters, std::span<RowMemory> rows,
            std::span<const std::unique_ptr<FwpkmStore>> stores) {
  const bool shared = config.memory == MemoryMode::kShared;
  const bool keep = !shared && config.carry != Carry::kSequence && !rows.empty();
  for (const MemoryRecord& record : records) {
    const std::string at = fmt::format("model.layers.{}.", record.layer);
    if (record.fwpkm.keys) {
      copy_view(record.fwpkm.keys.view(), parameters->writable(at + "fwpkm.keys"));
      FwpkmStore* store =
          stores.empty() ? nullptr : stores[static_cast<size_t>(record.layer)].get();
      if (store != nullptr && store->rows().log) {
        store->adopt(record.fwpkm);
      } else if (shared) {
        put_written(record.fwpkm, parameters->writable(at + "fwpkm.values"));
      } else if (keep) {
        put_rows(record.fwpkm, &rows[static_cast<size_t>(record.layer)].overlay);
      }
    }
    for (size_t i = 0; i < record.mlp.after.size() && record.mlp.after[0]; ++i) {
      const Tensor& after = record.mlp.after[i];
      if (shared) {
        const View& to = parameters->writable(at + kFwmlpNames[i]);
        copy_view(after.view().reshape(to.shape), to);
      } else if (keep) {
        rows[static_cast<size_t>(record.layer)].mlp[i] = after;
      }
    }
  }
}

}  // namespace fwpkm
