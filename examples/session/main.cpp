// Lets a model read a text, asks it about that with its memory and without, and saves the session.
//   ask MODEL TEXT.txt QUESTION OUT.session
#include <cstdio>
#include <exception>
#include <string>

#include "base/file.h"
#include "session/open.h"
#include "session/session.h"
#include "train/run_folder.h"

namespace {

std::string answer(const fwpkm::Session& session, const fwpkm::Tokenizer& tokenizer,
                   const std::string& question) {
  fwpkm::Session asked = session.fork();  // so that the question leaves no trace
  asked.feed(tokenizer.encode(question, true));
  const int32_t token[] = {asked.next({.temperature = 0})};
  return tokenizer.decode(token);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s MODEL TEXT.txt QUESTION OUT.session\n", argv[0]);
    return 2;
  }
  // A model folder, or the --out of a training run.
  const auto open = fwpkm::open_model(fwpkm::find_model(argv[1]), fwpkm::Device::cpu());

  fwpkm::Session session(open.model);
  session.feed(open.text().encode(fwpkm::read_text(argv[2])));
  fwpkm::Session other = session.fork();
  other.reset_memory();  // has read the same, and learned nothing

  std::printf("%s %s\n", argv[3], answer(session, open.text(), argv[3]).c_str());
  std::printf("without its memory: %s\n", answer(other, open.text(), argv[3]).c_str());

  session.save(argv[4], about_model(open));
  const auto bytes = session.bytes();
  std::printf("%d tokens read, %d slots differ, %.1f kB\n", static_cast<int>(session.position()),
              static_cast<int>(fwpkm::Session::diff(other, session).slots.size()),
              static_cast<double>(bytes.rows + bytes.fixed + bytes.history + bytes.index) / 1e3);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
