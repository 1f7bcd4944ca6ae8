-- lib/typed: a key that holds another type than expected fails nobody else's part of a batch.
-- defines  typed(kind, command, key, ...): the command's answer; nil when key does not hold that kind. Any other error ends the script
local function typed(kind, command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) == 'table' and answer.err then
    if redis.call('type', key).ok ~= kind then
      return nil
    end
    return redis.call(command, key, ...) -- raises the same error
  end
  return answer
end
