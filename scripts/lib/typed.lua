-- lib/typed: run a command in a batch, where one key of a wrong type must not fail the others.
-- defines  call_typed(kind, command, key, ...): the command's answer, or nil if the key exists with
--          another type than kind. Any other error ends the script
local function call_typed(kind, command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) == 'table' then
    local found = redis.call('type', key).ok
    if found ~= kind and found ~= 'none' then
      return nil
    end
    return redis.call(command, key, ...) -- raises the same error
  end
  return answer
end
