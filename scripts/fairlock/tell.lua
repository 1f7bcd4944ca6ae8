-- fairlock/tell: the next owner is told that the lock is free.
-- uses     queue
-- defines  tell(command, again): again when it has been told before
local function tell(command, again)
  local at = now()
  local first = head(at)
  if first then
    mark(at, not again)
    redis.call(command, KEYS[2] .. ':' .. first, '0')
  end
end
