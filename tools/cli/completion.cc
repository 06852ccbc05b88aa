// Completion scripts. Job names come from the cluster and may hold anything, so no shell ever
// expands them.

#include "tools/cli/command_line.h"

namespace backstay::tools {
namespace {

constexpr std::string_view kOptions =
    "--connect --json --timeout --tls-ca --tls-certificate --tls-key --help --version "
    "--timeline --names --generation --tensor --force --drop-state";

std::string CommandWords() {
  std::string words;
  for (const auto& [name, help] : kCommands) {
    words += (words.empty() ? "" : " ") + std::string(name);
  }
  return words;
}

std::string Bash() {
  return "# bash completion for backstay: source <(backstay completion bash)\n"
         "_backstay() {\n"
         "  local cur=${COMP_WORDS[COMP_CWORD]} command='' position=0 i word\n"
         "  COMPREPLY=()\n"
         "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
         "    word=${COMP_WORDS[i]}\n"
         "    case $word in\n"
         "      --connect | --timeout | --tls-* | --generation | --tensor) ((++i)) ;;\n"
         "      -*) ;;\n"
         "      *) if [[ -z $command ]]; then command=$word; else ((++position)); fi ;;\n"
         "    esac\n"
         "  done\n"
         "  if [[ $cur == -* ]]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -W '" +
         std::string(kOptions) +
         "' -- \"$cur\")\n"
         "  elif [[ -z $command ]]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -W '" +
         CommandWords() +
         "' -- \"$cur\")\n"
         "  elif [[ $command == completion ]]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -W 'bash zsh' -- \"$cur\")\n"
         "  elif [[ $command == fetch && $position == 3 ]]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
         "  elif [[ $position == 0 && $command != status && $command != jobs ]]; then\n"
         "    while IFS= read -r word; do\n"
         "      [[ $word == \"$cur\"* ]] && COMPREPLY+=(\"$(printf '%q' \"$word\")\")\n"
         "    done < <(backstay --timeout 1 jobs --names 2>/dev/null)\n"
         "  fi\n"
         "  return 0\n"
         "}\n"
         "complete -F _backstay backstay\n";
}

std::string Zsh() {
  std::string commands;
  for (const auto& [name, help] : kCommands) {
    commands += "    '" + std::string(name) + ":" + std::string(help) + "'\n";
  }
  return "#compdef backstay\n"
         "# zsh completion for backstay: source <(backstay completion zsh)\n"
         "_backstay() {\n"
         "  local -a commands jobs options\n"
         "  local command= word\n"
         "  integer position=0 i\n"
         "  commands=(\n" +
         commands +
         "  )\n"
         "  options=(" +
         std::string(kOptions) +
         ")\n"
         "  for ((i = 2; i < CURRENT; ++i)); do\n"
         "    word=$words[i]\n"
         "    case $word in\n"
         "      --connect|--timeout|--tls-*|--generation|--tensor) ((++i)) ;;\n"
         "      -*) ;;\n"
         "      *) if [[ -z $command ]]; then command=$word; else ((++position)); fi ;;\n"
         "    esac\n"
         "  done\n"
         "  if [[ $words[CURRENT] == -* ]]; then\n"
         "    compadd -- $options\n"
         "  elif [[ -z $command ]]; then\n"
         "    _describe command commands\n"
         "  elif [[ $command == completion ]]; then\n"
         "    compadd -- bash zsh\n"
         "  elif [[ $command == fetch && $position == 3 ]]; then\n"
         "    _files\n"
         "  elif [[ $position == 0 && $command != status && $command != jobs ]]; then\n"
         "    jobs=(\"${(@f)$(backstay --timeout 1 jobs --names 2>/dev/null)}\")\n"
         "    compadd -- \"${jobs[@]}\"\n"
         "  fi\n"
         "}\n"
         "if [[ ${funcstack[1]} == _backstay ]]; then _backstay \"$@\"; else compdef _backstay "
         "backstay; fi\n";
}

}  // namespace

std::string CompletionScript(std::string_view shell) { return shell == "zsh" ? Zsh() : Bash(); }

}  // namespace backstay::tools
