#include <csignal>
#include <cstdio>

#include "base/error.h"
#include "cli/cli.h"

int main(int argc, char** argv) {
  using namespace fwpkm;
  // A file size limit shall be an error with a message, not a death.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app{"fwpkm: language models with Fast-weight Product Key Memory"};
  app.name("fwpkm");
  app.set_version_flag("--version", std::string("fwpkm ") + FWPKM_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  cli::add_train(app);
  cli::add_generate(app);
  cli::add_session(app);
  cli::add_inspect(app);
  cli::add_eval(app);
  cli::add_curves(app);
  cli::add_report(app);
  cli::add_model(app);
  cli::add_cost(app);
  cli::add_config(app);
  cli::add_run(app);
  cli::add_golden(app);
  cli::add_check(app);
  cli::add_bench(app);
  cli::add_data(app);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::RuntimeError& e) {  // the exit status of a command
    return e.get_exit_code();
  } catch (const CLI::ParseError& e) {
    const int status = app.exit(e);
    return status == 0 ? 0 : 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "error: [memory] out of memory; use a smaller batch, sequence or model\n");
    return 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
}
