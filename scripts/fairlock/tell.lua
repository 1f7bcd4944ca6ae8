-- fairlock/tell: the next owner is told that the lock is free.
-- uses     queue
-- defines  tell(command)
local function tell(command)
  local at = now()
  local first = head(at)
  if first then
    mark(at, 0)
    redis.call(command, KEYS[2] .. ':' .. first, '0')
  end
end
